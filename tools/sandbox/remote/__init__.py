"""A sandbox over HTTP: ``python -m tools.sandbox serve``, and the client that looks like one."""
