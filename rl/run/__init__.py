"""What a run leaves behind: configuration, metrics, trajectories, curve, checkpoints."""
