"""Answers compared by math-verify, in processes of their own."""
