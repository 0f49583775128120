"""Learning from preferences and labelled steps; reward models and judges as rewards."""
