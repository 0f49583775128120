"""Policy engines: what ``policy=NAME`` stands for, with its settings."""
