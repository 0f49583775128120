"""Advantages and losses: pure functions of tensors, and the table of algorithms."""
