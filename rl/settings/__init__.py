"""Groups of a run's settings, as plain frozen dataclasses."""
