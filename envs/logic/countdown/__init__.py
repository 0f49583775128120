"""Countdown: combine numbers to make a target number."""
