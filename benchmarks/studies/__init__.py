"""Studies that test claims of papers on reinforcement learning with small language models.

Each module is a study: its docstring states the question, and ``study`` makes the runs and returns
the tables. ``python -m benchmarks.studies NAME`` prints them.
"""
