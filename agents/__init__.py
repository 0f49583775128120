"""Agents, which turn messages into actions by a renderer and a policy."""
