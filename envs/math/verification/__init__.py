"""Verification of answers by math-verify, in separate processes."""
