"""Training data beside episodes: files of conversations, comparisons and labelled steps."""
