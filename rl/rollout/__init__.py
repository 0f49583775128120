"""Rollouts: a policy plays tasks of an environment, and trajectories record them."""
