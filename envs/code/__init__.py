"""Programs as actions: the task describes a function, hidden tests grade it."""
