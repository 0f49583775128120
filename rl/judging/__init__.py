"""Models that judge answers in words: one in this process, labels for pairs, grades as rewards."""
