"""Collectors: processes that play episodes for a run, each with its own event loop."""
