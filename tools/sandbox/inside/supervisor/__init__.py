"""The supervisor: a trusted process that starts, limits and ends one run or session."""
