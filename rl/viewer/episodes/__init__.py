"""The episodes of a run: an index of all of them, and one of them with its tokens."""
