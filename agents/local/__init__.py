"""The local policy: a transformers model in this process, with continuous batching."""

from agents.local.engine import Stats
from agents.local.forward import position_bytes
from agents.local.policy import Limits, LocalPolicy
from agents.torch_thread import TorchThread

__all__ = ["Limits", "LocalPolicy", "Stats", "TorchThread", "position_bytes"]
