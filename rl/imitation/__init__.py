"""Learning to say what an author said: whom an environment has for an author, and the training."""
