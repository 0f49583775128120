"""A policy whose tokens a vLLM server samples, here or elsewhere."""

from agents.vllm.member import Member
from agents.vllm.policy import Timeouts, VLLMServerPolicy
from agents.vllm.process import ServerConfig, ServerProcess
from agents.vllm.proof import Prober, WeightsDiffer
from agents.vllm.weights import WeightFolders

__all__ = [
    "Member",
    "Prober",
    "ServerConfig",
    "ServerProcess",
    "Timeouts",
    "VLLMServerPolicy",
    "WeightFolders",
    "WeightsDiffer",
]
