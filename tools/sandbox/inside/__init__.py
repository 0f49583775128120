"""Code that runs inside a sandbox.

It is sent as source text, so it uses only the standard library.
"""
