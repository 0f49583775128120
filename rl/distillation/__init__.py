"""From played episodes to texts that others learn from: which are chosen, and what is written."""
