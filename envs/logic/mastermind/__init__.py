"""Mastermind: guess a code from what is said of each guess."""
