"""``python -m envs``: lists, describes and checks environments, and creates a new one."""
