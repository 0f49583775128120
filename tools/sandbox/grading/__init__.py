"""Grading: test cases, a submission's process, and the comparison of its answers."""
