"""The policy that samples by vLLM's engine in this process; see :class:`agents.policy.Policy`."""

from __future__ import annotations

from agents.vllm.engine import Engine
from agents.vllm.engine_process import EngineProcess
from agents.vllm.errors import Unreachable
from agents.vllm.member import Member
from agents.vllm.policy import Timeouts, VLLMServerPolicy
from agents.vllm.proof import Prober
from agents.vllm.transfer import Transfer
from agents.vllm.weights import WeightFolders


class VLLMEnginePolicy(VLLMServerPolicy):
    """Samples by one engine, which is looked after as a server that a run starts.

    Args:
        process: the engine.
        folders: where weights are handed over.
        prober: proves that they arrived.
        context_window: tokens of one sequence.
        timeouts: deadlines.
        start_s: deadline of its being there, in seconds.
        load_s: deadline of loading weights, of sleeping and of waking up.
    """

    def __init__(
        self,
        process: EngineProcess,
        folders: WeightFolders | Transfer,
        prober: Prober,
        *,
        context_window: int,
        timeouts: Timeouts | None = None,
        start_s: float = 600.0,
        load_s: float = 120.0,
    ) -> None:
        self._engine = Member(prober, engine=process, start_s=start_s, load_s=load_s)
        self._sleeps = process.config.sleep
        super().__init__(
            [self._engine], folders, prober, context_window=context_window, timeouts=timeouts
        )

    async def sleep(self) -> None:
        """Give the device's memory to the learner, where that was configured.

        An engine that fails at it is started again, awake.
        """
        await self._rest(asleep=True)

    async def wake(self) -> None:
        """Take the memory back."""
        await self._rest(asleep=False)

    def facts(self) -> dict[str, object]:
        """What a run records of its policy."""
        import vllm

        return {"policy": "vllm-engine", "vllm": vllm.__version__, "sleep": self._sleeps}

    async def _rest(self, *, asleep: bool) -> None:
        if not self._sleeps or not self._engine.is_ready:
            return
        engine = self._engine.replica
        assert isinstance(engine, Engine)
        try:
            await (engine.sleep() if asleep else engine.wake())
        except Unreachable as error:
            self._engine.suspect(error)
