"""The embedded policy: a transformers model in this process, batched continuously."""

from agents.local.engine import Stats
from agents.local.policy import Limits, LocalPolicy

__all__ = ["Limits", "LocalPolicy", "Stats"]
