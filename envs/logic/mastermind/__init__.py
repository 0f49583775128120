"""Mastermind: guess a secret code; the environment answers each guess."""
