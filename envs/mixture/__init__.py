"""Several environments as one."""
