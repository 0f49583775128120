"""Selection of played episodes as training data for other models."""
