"""Statistics of evaluations, and the parts of ``python -m rl.eval``.

The modules of statistics take plain numbers, one list for each task, and need only numpy.
"""

SEED = 20
"""Seed of all random draws of an evaluation's statistics. Equal episodes give equal numbers."""
