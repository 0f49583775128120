"""VLLM's engine in this process: its verbs, each with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from agents.completion import Completion, SamplingParams
from agents.vllm.adapter import ADAPTER, is_adapter
from agents.vllm.engine_process import EngineProcess
from agents.vllm.errors import Broken, Refused, Unreachable
from agents.vllm.instance import Handover
from agents.vllm.protocol import Verb, transfer_body
from agents.vllm.replica import FIRST
from agents.vllm.sampling import (
    UNBOUNDED,
    Asked,
    BadAnswer,
    NoSupport,
    Sampled,
    Span,
    completion_from,
    sampling_parameters,
    scored,
)

T = TypeVar("T")
_PROGRESS = ("vllm:generation_tokens", "vllm:prompt_tokens")


class Engine:
    """An engine that was started here, asked as a :class:`~agents.vllm.replica.Replica` is.

    Args:
        process: whoever started it.
        short_s: deadline of everything that generates nothing, in seconds.
        load_s: deadline of loading weights.
    """

    url = "the vLLM engine"
    path = "AsyncLLM"

    def __init__(self, process: EngineProcess, *, short_s: float, load_s: float) -> None:
        self._process = process
        self._short_s = short_s
        self._load_s = load_s
        self.context_window = 0
        self.max_num_seqs: int | None = None
        """Requests that it computes at once."""
        self.num_workers = 1
        """Processes that hold its weights."""
        self.tells_supports = False
        """Whether it tells what top-k and top-p left."""
        self.num_running = 0
        """Requests that it was sent and has not answered."""
        self._adapter: Path | None = None
        """Where the adapter lay that it was given first; None: it has none."""

    async def describe(self) -> None:
        """Learn its window, and how many requests it computes at once.

        Raises:
            Unreachable: it is not there.
        """
        llm = self._llm()
        self.context_window = int(llm.model_config.max_model_len)
        self.num_workers = int(llm.vllm_config.parallel_config.world_size)
        self.max_num_seqs = int(llm.scheduler_config.max_num_seqs)
        self.tells_supports = getattr(llm.model_config, "return_sampling_mask", False) is True

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        version: int,
        priority: int,
        deadline_s: float,
    ) -> Completion:
        """One completion; cancelling the call aborts the request.

        Raises:
            Unreachable: the engine does not answer in time, or is dead.
            Refused: the request is wrong.
        """
        asked = Asked.of(prompt_ids, sampling, self.context_window, version)
        output = await self._ask(
            prompt_ids, sampling, request_id, str(version), deadline_s, priority=priority
        )
        return self._completion(output, asked)

    async def probe(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, version: int
    ) -> tuple[list[float], Completion]:
        """The log-probabilities of a prompt's tokens, and a completion with those of its own.

        Returns:
            Those of the prompt from its second token on, at temperature 1; and what is sampled.

        Raises:
            Unreachable, Refused: as :meth:`generate`.
        """
        name = f"probe-{version}"
        output = await self._ask(
            prompt_ids, sampling, name, name, self._load_s, priority=FIRST, prompt=True
        )
        asked = Asked.of(prompt_ids, sampling, self.context_window, version)
        rows = output.prompt_logprobs
        read = None
        if rows is not None:
            entries = zip(prompt_ids, rows, strict=False)
            read = [_logprob(row, token) for token, row in entries]
        try:
            return scored(prompt_ids, read), self._completion(output, asked)
        except BadAnswer as bad:
            raise Broken(f"{self.url} cannot be believed: {bad}") from bad

    async def load(self, given: Handover, version: int) -> None:
        """Pause, load the weights or the adapter that are given, label them, go on.

        Requests that are running go on with the new weights; their keys and values are computed
        anew. A failure leaves the engine paused: another :meth:`load` may repair it, a request
        would end it.

        Raises:
            Unreachable: the engine does not answer in time, or could not load them.
        """
        llm = self._llm()
        await self._do("pause", llm.pause_generation(mode="keep", clear_cache=True), self._load_s)
        await self._take(given)
        await self._do("label weights", llm.update_weight_version(str(version)), self._short_s)
        await self._do("go on", llm.resume_generation(), self._short_s)

    async def _take(self, given: Handover) -> None:
        if not isinstance(given, Path):
            return await given.into(self)
        if is_adapter(given):
            self._adapter = self._adapter or given
            loading = self._llm().add_lora(_named(given, load_inplace=True))
        else:
            reload = {"weights_path": str(given)}
            loading = self._llm().collective_rpc("reload_weights", kwargs=reload)
        await self._do("load weights", loading, self._load_s)

    async def transfer(self, verb: Verb, told: Mapping[str, Any]) -> None:
        """Tell it a verb of vLLM's own transfer of weights.

        Raises:
            Unreachable: it does not answer in time, or fails.
        """
        call = self._llm().collective_rpc(verb, kwargs=transfer_body(told))
        await self._do(verb.replace("_", " "), call, self._load_s)

    async def num_tokens(self) -> float | None:
        """Tokens that it has read and sampled since it was started; None where it does not count.

        Raises:
            Unreachable: it is not there.
        """
        self._llm()
        from vllm.v1.metrics.reader import get_metrics_snapshot

        found = [metric for metric in get_metrics_snapshot() if metric.name in _PROGRESS]
        return float(sum(metric.value for metric in found)) if found else None

    async def sleep(self) -> None:
        """Give back the device's memory: weights move to the host's, keys and values are dropped.

        Requests that are running wait.

        Raises:
            Unreachable: it does not in time.
        """
        await self._do("sleep", self._llm().sleep(level=1, mode="keep"), self._load_s)

    async def wake(self) -> None:
        """Take the memory back, and go on.

        Raises:
            Unreachable: it does not in time.
        """
        await self._do("wake up", self._llm().wake_up(), self._load_s)

    def _llm(self) -> Any:
        llm = self._process.llm
        if llm is None or llm.errored:
            raise Unreachable(f"{self.url} is not there")
        return llm

    async def _ask(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        request_id: str,
        salt: str,
        deadline_s: float,
        *,
        priority: int,
        prompt: bool = False,
    ) -> Any:
        """What vLLM says at a request's end."""
        llm = self._llm()
        if self.tells_supports and not sampling.top_k:
            raise Refused(f"{self.url} {UNBOUNDED}")
        from vllm import SamplingParams as Parameters
        from vllm import TokensPrompt
        from vllm.exceptions import VLLMClientError
        from vllm.sampling_params import RequestOutputKind

        async def last() -> Any:
            told = sampling_parameters(sampling, prompt_logprobs=prompt)
            parameters = Parameters(**told, output_kind=RequestOutputKind.FINAL_ONLY)
            tokens = TokensPrompt(prompt_token_ids=list(prompt_ids), cache_salt=salt)
            adapter = _named(self._adapter) if self._adapter is not None else None
            asked = llm.generate(
                tokens, parameters, request_id, lora_request=adapter, priority=priority
            )
            outputs = [output async for output in asked]
            if not outputs:
                raise Unreachable(f"{self.url} answered nothing")
            return outputs[-1]

        self.num_running += 1
        try:
            return await self._do("answer", last(), deadline_s)
        except Unreachable as error:
            if isinstance(error.__cause__, VLLMClientError | ValueError):
                raise Refused(f"{self.url}: {error.__cause__}") from error
            raise
        finally:
            self.num_running -= 1

    def _completion(self, output: Any, asked: Asked) -> Completion:
        told = output.outputs[0]
        tokens = [int(token) for token in told.token_ids]
        rows = told.logprobs or ()
        logprobs = [_logprob(row, token) for token, row in zip(tokens, rows, strict=False)]
        sampled = Sampled(
            tokens,
            [logprob for logprob in logprobs if logprob is not None],
            [Span(span.version, span.start, span.end) for span in told.weight_versions or ()],
            told.finish_reason,
            told.stop_reason,
            None if told.sampling_mask is None else told.sampling_mask.token_ids,
        )
        try:
            return completion_from(sampled, asked)
        except BadAnswer as bad:
            raise Broken(f"{self.url} cannot be believed: {bad}") from bad
        except NoSupport as missing:
            raise Refused(f"{self.url}: {missing}") from missing

    async def _do(self, what: str, call: Awaitable[T], deadline_s: float) -> T:
        try:
            async with asyncio.timeout(deadline_s):
                return await call
        except TimeoutError as error:
            raise Unreachable(f"{self.url} did not {what} within {deadline_s:g} s") from error
        # The engine's own failures have no type in common.
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise Unreachable(f"{self.url} did not {what}: {said}") from error


def _named(folder: Path, *, load_inplace: bool = False) -> Any:
    """The adapter, as vLLM is told of it; a request names it and has nothing read."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(ADAPTER, 1, str(folder), load_inplace=load_inplace)


def _logprob(row: Any, token: int) -> float | None:
    entry = (row or {}).get(token)
    return None if entry is None else float(entry.logprob)
