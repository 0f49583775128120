"""From episodes to trajectories."""
