"""``kuhn-poker-v0``: a zero-sum game of two roles whose solution is known exactly."""
