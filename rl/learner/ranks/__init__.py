"""A learner of several ranks: processes that share one model, and compute each update together."""
