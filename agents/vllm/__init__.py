"""Policies whose tokens vLLM samples: servers, here or elsewhere, or the engine in this process."""

from agents.vllm.engine_policy import VLLMEnginePolicy
from agents.vllm.engine_process import EngineConfig, EngineProcess
from agents.vllm.member import Member
from agents.vllm.policy import Timeouts, VLLMServerPolicy
from agents.vllm.process import ServerConfig, ServerProcess
from agents.vllm.proof import Prober, WeightsDiffer
from agents.vllm.transfer import MEETINGS, Transfer
from agents.vllm.weights import WeightFolders

__all__ = [
    "MEETINGS",
    "EngineConfig",
    "EngineProcess",
    "Member",
    "Prober",
    "ServerConfig",
    "ServerProcess",
    "Timeouts",
    "Transfer",
    "VLLMEnginePolicy",
    "VLLMServerPolicy",
    "WeightFolders",
    "WeightsDiffer",
]
