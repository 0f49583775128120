"""The memory plan of a run: what each phase needs, before anything is loaded."""
