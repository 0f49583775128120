"""Reinforcement learning: rollouts, credit, losses, the learner and the run."""
