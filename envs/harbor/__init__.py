"""``harbor-v0``: folders of tasks in Harbor's format, in containers or sandboxes."""
