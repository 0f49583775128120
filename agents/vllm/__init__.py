"""Policies that sample with vLLM, by servers or by the engine in this process."""

from agents.vllm.client import VLLMClient
from agents.vllm.engine_policy import VLLMEnginePolicy
from agents.vllm.engine_process import EngineConfig, VLLMEngineProcess
from agents.vllm.policy import VLLMServerPolicy
from agents.vllm.server_process import ServerConfig, VLLMServerProcess
from agents.vllm.transfer import RENDEZVOUS, Transfer

__all__ = [
    "RENDEZVOUS",
    "EngineConfig",
    "ServerConfig",
    "Transfer",
    "VLLMClient",
    "VLLMEnginePolicy",
    "VLLMEngineProcess",
    "VLLMServerPolicy",
    "VLLMServerProcess",
]
