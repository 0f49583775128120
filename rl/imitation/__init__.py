"""Demonstrations of environments, and supervised training on conversations."""
