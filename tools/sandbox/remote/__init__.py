"""A sandbox over HTTP: the server ``python -m tools.sandbox serve``, and the client."""
