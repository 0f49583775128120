"""The policy that samples with vLLM's engine in this process."""

from __future__ import annotations

from agents.serving.client import WeightPublisher
from agents.serving.probe import Prober
from agents.serving.sampling.sampler import Timeouts
from agents.serving.server import ManagedServer
from agents.vllm.engine_process import VLLMEngineProcess
from agents.vllm.policy import VLLMServerPolicy


class VLLMEnginePolicy(VLLMServerPolicy):
    """Samples with one engine. The engine is monitored, and restarted after a failure.

    Args:
        process: starts the engine.
        publisher: makes weights available to the engine.
        prober: verifies the engine's weights.
        context_window: maximum tokens of one sequence.
        timeouts: deadlines of completions.
        start_s: deadline of a start, in seconds.
        load_s: deadline of loading weights, of sleeping and of waking up.
    """

    def __init__(
        self,
        process: VLLMEngineProcess,
        publisher: WeightPublisher,
        prober: Prober,
        *,
        context_window: int,
        timeouts: Timeouts | None = None,
        start_s: float = 600.0,
        load_s: float = 120.0,
    ) -> None:
        self._server = ManagedServer(prober, runner=process, start_s=start_s, load_s=load_s)
        super().__init__(
            *([self._server], publisher, prober),
            context_window=context_window,
            timeouts=timeouts,
            sleeps=process.config.sleep,
        )

    def facts(self) -> dict[str, object]:
        """Properties of the policy that a run records."""
        import vllm

        return {"policy": "vllm-engine", "vllm": vllm.__version__, "sleep": self.sleeps}
