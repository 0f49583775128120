"""``envs.check_env`` and the rules of the contract that it tests."""
