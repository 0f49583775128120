"""The policy that samples from vLLM servers."""

from __future__ import annotations

from agents.serving.policy import ServerPolicy


class VLLMServerPolicy(ServerPolicy):
    """Samples from vLLM servers that all run the same weights."""

    engine = "vLLM"
    compares_digests = True
    window_option = "--max-model-len"

    def facts(self) -> dict[str, object]:
        """Properties of the policy that a run records."""
        return super().facts() | {"policy": "vllm-server"}
