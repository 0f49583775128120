"""Learning from preferences and labelled steps, and what is learned as a reward."""
