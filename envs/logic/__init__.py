"""Puzzles that have one solution, or whose solutions are easy to check."""
