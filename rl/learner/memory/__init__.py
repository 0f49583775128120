"""Memory of the learner: what it keeps, computes again, or moves to the host."""
