"""``python -m envs``: what there is, what one is, whether it keeps the contract, a new one."""
