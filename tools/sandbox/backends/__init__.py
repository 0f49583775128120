"""Backends: how a zygote is started and confined by bubblewrap, docker or Landlock."""
