"""Conversations that outgrow their context: the agent's own summary, or dropped turns."""
