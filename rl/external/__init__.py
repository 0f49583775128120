"""Agents whose loop is the user's own program, trained through ``agents.capture``."""
