"""The steps of a run and everything that a run writes: metrics, trajectories, checkpoints."""
