"""Agents: from messages to actions, by way of a renderer and a policy."""
