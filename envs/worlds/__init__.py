"""Worlds of other libraries in which an agent acts by short commands."""
