"""Rewards and scores over text: pure functions."""
