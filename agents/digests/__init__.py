"""Digests of tensors, which show that an engine holds the weights that the learner sent."""
