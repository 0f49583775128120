"""Rollouts: an environment, a policy and tasks become trajectories."""
