"""Grading of submissions: test cases, the submission's process, and the comparison of answers."""
