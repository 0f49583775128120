"""Memory of the learner: what is kept, computed again, or moved to the host."""
