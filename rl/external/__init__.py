"""``env=agent``: training a program that uses the API of OpenAI, through ``agents.capture``."""
