"""Reinforcement learning: rollouts, credit, losses, the learner and the run."""

from rl.run.identity import check_packages

check_packages()
