"""Sudoku with grids of 4 by 4 and 9 by 9 cells."""
