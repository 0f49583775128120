"""Countdown: make a number out of others."""
