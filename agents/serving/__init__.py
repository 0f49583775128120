"""Parts of policies that sample from inference servers, for any engine.

An engine implements :class:`EngineClient`, and :class:`EngineRunner` (or :class:`ServerProcess`) if
runs start it. :class:`ServerPolicy` adds the rest: queues, retries, restarts, weight updates and
their verification. ``agents/vllm`` is an example.
"""

from agents.serving.client import (
    EngineClient,
    EngineRunner,
    PublishedWeights,
    UnfitWeights,
    WeightPublisher,
    copier,
)
from agents.serving.errors import Broken, Lost, Refused, ServerGone, Unreachable
from agents.serving.policy import ServerPolicy
from agents.serving.probe import PROBE_TOKENS, Prober, WeightsDiffer
from agents.serving.process import ServerProcess
from agents.serving.sampling.sampler import Timeouts
from agents.serving.server import ManagedServer
from agents.serving.weight_folders import WeightFolders

__all__ = [
    "PROBE_TOKENS",
    "Broken",
    "EngineClient",
    "EngineRunner",
    "Lost",
    "ManagedServer",
    "Prober",
    "PublishedWeights",
    "Refused",
    "ServerGone",
    "ServerPolicy",
    "ServerProcess",
    "Timeouts",
    "UnfitWeights",
    "Unreachable",
    "WeightFolders",
    "WeightPublisher",
    "WeightsDiffer",
    "copier",
]
