"""Puzzles with one solution, or with a solution that anybody can check."""
