"""The process of a run: its start and its end, its activities, and what watches them."""
