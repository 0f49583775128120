"""``envs.check_env``, and the rules of the environment contract that it tests."""
