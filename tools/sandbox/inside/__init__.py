"""Code that runs inside a sandbox. It uses only the standard library: it is sent as source text."""
