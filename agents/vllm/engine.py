"""A client of vLLM's engine in this process. Every call has a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from agents.completion import Completion, SamplingParams
from agents.digests.comparison import LoadedDigests
from agents.digests.turnwise_digests import WeightDigests
from agents.serving.client import FIRST, PublishedWeights
from agents.serving.errors import Broken, Refused, Unreachable
from agents.vllm.adapter import ADAPTER, is_adapter
from agents.vllm.protocol import Verb, transfer_body
from agents.vllm.sampling import (
    UNBOUNDED,
    BadAnswer,
    Expected,
    NotReported,
    Sampled,
    Span,
    completion_from,
    sampling_parameters,
    scored,
)

T = TypeVar("T")
_PROGRESS = ("vllm:generation_tokens", "vllm:prompt_tokens")


class Engine:
    """Sends requests to the engine, as :class:`~agents.vllm.client.VLLMClient` does to a server.

    Args:
        llm: returns the AsyncLLM, or None before it is ready and after it has ended.
        short_s: deadline of calls that generate nothing, in seconds.
        load_s: deadline of loading weights.
    """

    url = "the vLLM engine"
    endpoint = "AsyncLLM"
    reports_versions = True

    def __init__(self, llm: Callable[[], Any], *, short_s: float, load_s: float) -> None:
        self._current = llm
        self._short_s = short_s
        self._load_s = load_s
        self.context_window = 0
        self.max_num_seqs: int | None = None
        """Number of requests that the engine computes at the same time, or None if unknown."""
        self.num_workers = 1
        """Number of processes that hold the weights."""
        self.reports_support = False
        """Whether the engine reports the sampling support."""
        self.num_running = 0
        """Number of requests without a response."""
        self._cache_sleeps = False
        """Whether the cache of keys and values has no memory, since :meth:`sleep`."""
        self._adapter: Path | None = None
        """Folder of the first loaded adapter, which requests name, or None without an adapter."""

    async def describe(self) -> None:
        """Query the engine's context window and scheduler.

        Raises:
            Unreachable: the engine is not running.
        """
        llm = self._llm()
        self.context_window = int(llm.model_config.max_model_len)
        self.num_workers = int(llm.vllm_config.parallel_config.world_size)
        self.max_num_seqs = int(llm.scheduler_config.max_num_seqs)
        self.reports_support = getattr(llm.model_config, "return_sampling_mask", False) is True

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
        """Sample one completion. Cancelling the call aborts the request.

        Raises:
            Unreachable: the engine does not answer in time, or is dead.
            Refused: the request is wrong.
        """
        expected = Expected.of(prompt_ids, sampling, self.context_window, version)
        output = await self._ask(
            prompt_ids, sampling, request_id, str(version), deadline_s, priority=priority
        )
        return await self._completion(output, expected)

    async def probe(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, version: int
    ) -> tuple[list[float], Completion]:
        """Score a prompt's tokens, except the first, and sample a completion.

        Returns:
            The prompt's log-probabilities, at temperature 1, and the completion.

        Raises:
            Unreachable, Refused: as :meth:`generate`.
        """
        name = f"probe-{version}"
        output = await self._ask(
            prompt_ids, sampling, name, name, self._load_s, priority=FIRST, prompt=True
        )
        expected = Expected.of(prompt_ids, sampling, self.context_window, version)
        rows = output.prompt_logprobs
        read = None
        if rows is not None:
            entries = zip(prompt_ids, rows, strict=False)
            read = [_logprob(row, token) for token, row in entries]
        try:
            return scored(prompt_ids, read), await self._completion(output, expected)
        except BadAnswer as bad:
            raise Broken(f"{self.url}: invalid response: {bad}") from bad

    async def load(self, weights: PublishedWeights, version: int) -> LoadedDigests | None:
        """Pause the engine, load the weights or the adapter, set the version label, and resume.

        Running requests continue with the new weights, for which the engine recomputes their keys
        and values. After a failure the engine stays paused. Another :meth:`load` can repair the
        engine, but a request would crash the engine.

        Returns:
            The digests of the loaded parameters. None if an adapter was loaded, or if the engine
            has several workers.

        Raises:
            Unreachable: the engine does not answer in time, or could not load the weights.
        """
        llm = self._llm()
        await self._do("pause", llm.pause_generation(mode="keep", clear_cache=True), self._load_s)
        loaded = await self._receive_watched(weights)
        await self._do("label weights", llm.update_weight_version(str(version)), self._short_s)
        if self._cache_sleeps:
            # Last: loading needs room, and vLLM resumes as soon as all memory is back.
            await self._do("wake its cache", llm.wake_up(tags=["kv_cache"]), self._load_s)
            self._cache_sleeps = False
        await self._do("resume", llm.resume_generation(), self._short_s)
        return loaded

    async def _receive_watched(self, weights: PublishedWeights) -> LoadedDigests | None:
        """Load the weights. Returns the digests of the loaded parameters."""
        is_whole = not (isinstance(weights, Path) and is_adapter(weights))
        extension = str(self._llm().vllm_config.parallel_config.worker_extension_cls)
        reports = extension.endswith(f".{WeightDigests.__qualname__}")
        if not (is_whole and self.num_workers == 1 and reports):
            await self._receive(weights)
            return None
        watch = self._llm().collective_rpc("turnwise_watch_weights")
        await self._do("watch the weights", watch, self._load_s)
        await self._receive(weights)
        digests = self._llm().collective_rpc("turnwise_weight_digests")
        answers = await self._do("report digests of the weights", digests, self._load_s)
        return LoadedDigests.of_workers(answers)

    async def _receive(self, weights: PublishedWeights) -> None:
        if not isinstance(weights, Path):
            return await weights.into(self)
        if is_adapter(weights):
            self._adapter = self._adapter or weights
            loading = self._llm().add_lora(_lora_request(weights, load_inplace=True))
        else:
            reload = {"weights_path": str(weights)}
            loading = self._llm().collective_rpc("reload_weights", kwargs=reload)
        await self._do("load weights", loading, self._load_s)

    async def transfer(self, verb: Verb, arguments: Mapping[str, Any]) -> None:
        """Call one step (a verb) of vLLM's own weight transfer.

        Raises:
            Unreachable: the engine does not answer in time, or fails.
        """
        call = self._llm().collective_rpc(verb, kwargs=transfer_body(arguments))
        await self._do(verb.replace("_", " "), call, self._load_s)

    async def num_tokens(self) -> float | None:
        """Number of tokens read and sampled since the engine's start, or None if unknown.

        Raises:
            Unreachable: the engine is not running.
        """
        self._llm()
        from vllm.v1.metrics.reader import get_metrics_snapshot

        found = [metric for metric in get_metrics_snapshot() if metric.name in _PROGRESS]
        return float(sum(metric.value for metric in found)) if found else None

    async def sleep(self) -> None:
        """Free the device's memory; see :class:`~agents.serving.client.SleepingClient`.

        Raises:
            Unreachable: the engine does not sleep in time.
        """
        sleeping = self._llm().sleep(level=1, mode="keep")
        await self._do("sleep", sleeping, self._load_s)
        self._cache_sleeps = True

    async def wake(self) -> None:
        """Bring the weights back; the next :meth:`load` brings the cache back, and resumes.

        Raises:
            Unreachable: the engine does not wake up in time.
        """
        await self._do("wake up", self._llm().wake_up(tags=["weights"]), self._load_s)

    def _llm(self) -> Any:
        llm = self._current()
        if llm is None or llm.errored:
            raise Unreachable(f"{self.url} is not running")
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
        """VLLM's final output of a request."""
        llm = self._llm()
        if self.reports_support and not sampling.top_k:
            raise Refused(f"{self.url} {UNBOUNDED}")
        from vllm import SamplingParams as Parameters
        from vllm import TokensPrompt
        from vllm.exceptions import VLLMClientError
        from vllm.sampling_params import RequestOutputKind

        async def last() -> Any:
            values = sampling_parameters(sampling, prompt_logprobs=prompt)
            parameters = Parameters(**values, output_kind=RequestOutputKind.FINAL_ONLY)
            tokens = TokensPrompt(prompt_token_ids=list(prompt_ids), cache_salt=salt)
            adapter = _lora_request(self._adapter) if self._adapter is not None else None
            generating = llm.generate(
                tokens, parameters, request_id, lora_request=adapter, priority=priority
            )
            outputs = [output async for output in generating]
            if not outputs:
                raise Unreachable(f"{self.url} returned no output")
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

    async def _completion(self, output: Any, expected: Expected) -> Completion:
        """The checked completion. Supports, which have many ids, are read in a thread."""

        def read() -> Completion:
            return completion_from(_sampled(output.outputs[0]), expected)

        try:
            return await asyncio.to_thread(read) if expected.needs_support else read()
        except BadAnswer as bad:
            raise Broken(f"{self.url}: invalid response: {bad}") from bad
        except NotReported as missing:
            raise Refused(f"{self.url}: {missing}") from missing

    async def _do(self, what: str, call: Awaitable[T], deadline_s: float) -> T:
        try:
            async with asyncio.timeout(deadline_s):
                return await call
        except TimeoutError as error:
            raise Unreachable(f"{self.url} did not {what} within {deadline_s:g} s") from error
        # The engine's exceptions have no common type.
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise Unreachable(f"{self.url} did not {what}: {said}") from error


def _lora_request(folder: Path, *, load_inplace: bool = False) -> Any:
    """VLLM's request for the adapter.

    Without ``load_inplace``, the loaded adapter is used unchanged.
    """
    from vllm.lora.request import LoRARequest

    return LoRARequest(ADAPTER, 1, str(folder), load_inplace=load_inplace)


def _sampled(choice: Any) -> Sampled:
    """VLLM's completion, before any check."""
    tokens = [int(token) for token in choice.token_ids]
    rows = choice.logprobs or ()
    logprobs = [_logprob(row, token) for token, row in zip(tokens, rows, strict=False)]
    return Sampled(
        tokens,
        [logprob for logprob in logprobs if logprob is not None],
        [Span(span.version, span.start, span.end) for span in choice.weight_versions or ()],
        choice.finish_reason,
        choice.stop_reason,
        None if choice.sampling_mask is None else choice.sampling_mask.token_ids,
        choice.routed_experts if hasattr(choice, "routed_experts") else None,
    )


def _logprob(row: Any, token: int) -> float | None:
    entry = (row or {}).get(token)
    return None if entry is None else float(entry.logprob)
