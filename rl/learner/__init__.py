"""The learner: from trajectories to new weights."""
