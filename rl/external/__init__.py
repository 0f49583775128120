"""``env=agent``: trains a user's program that calls OpenAI's API, through ``agents.capture``."""
