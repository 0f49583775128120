"""Programs as actions: the task describes a function, and hidden tests grade it."""
