"""Policy engines, which ``policy=NAME`` selects, and their settings."""
