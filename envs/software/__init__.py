"""``swe-mini-v0``: repositories with a fault to find and mend."""
