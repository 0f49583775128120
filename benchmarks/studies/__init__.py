"""What papers say of reinforcement learning with language models, asked of small ones.

Each module is a study: its docstring says what is asked, ``study`` makes its runs and returns its
tables. ``python -m benchmarks.studies NAME`` prints them.
"""
