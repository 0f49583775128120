"""Mastermind: guess a code from the answers to guesses."""
