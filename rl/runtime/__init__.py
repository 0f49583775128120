"""The runtime of a command: the environment's services, the model, and the policy."""
