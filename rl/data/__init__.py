"""Training data beside episodes: conversations, demonstrations, comparisons and labelled steps."""
