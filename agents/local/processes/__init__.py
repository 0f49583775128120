"""Sampling from one model in several processes, because one Python process keeps one core busy."""

from agents.local.processes.policy import MultiProcessPolicy

__all__ = ["MultiProcessPolicy"]
