"""The policy that samples from vLLM servers."""

from __future__ import annotations

from agents.serving.policy import ServerPolicy
from agents.vllm.client import VLLMClient


class VLLMServerPolicy(ServerPolicy):
    """Samples from vLLM servers that all run the same weights."""

    engine = "vLLM"
    compares_digests = True
    window_option = "--max-model-len"

    def facts(self) -> dict[str, object]:
        """Properties of the policy that a run records."""
        clients = [server.client for server in self._servers]
        versions = {c.vllm_version for c in clients if isinstance(c, VLLMClient)}
        own = {"policy": "vllm-server", "vllm": ", ".join(sorted(versions))}
        return super().facts() | own
