"""Puzzles with one solution, or with a solution that is easy to check."""
