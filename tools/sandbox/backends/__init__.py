"""Backends, which start and confine zygotes by bubblewrap, docker or Landlock."""
