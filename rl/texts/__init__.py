"""What is learned from beside episodes: conversations, comparisons, labelled steps, in files."""
