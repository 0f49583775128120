"""The policy that runs a transformers model in this process, in its own thread."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from inspect import signature

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agents.completion import Completion, FinishReason, SamplingParams
from agents.local.engine import Engine, Stats
from agents.local.forward import (
    BatchedForward,
    Forward,
    ThinForward,
    TransformersForward,
    batch_obstacle,
    context_window,
    difference,
    position_bytes,
    rope_window,
    thin_obstacle,
    trial_of,
)
from agents.local.request import Request
from agents.local.slots import CacheLimits
from agents.local.stops import StopStringTable
from agents.local.waves import Gate
from agents.local.weights import check_weights, copy_weights, verify_weights
from agents.local.worker import Worker
from agents.policy import PolicyFailure
from agents.torch_thread import TorchThread

_log = logging.getLogger(__name__)
_PARALLEL_FROM = 2_000_000
"""Minimum number of parameters, without embeddings, of a model that uses several cores. The
speed-up of two cores, at 16, 64 and 128 rows, is 0.9, 1.2 and 1.2 with 0.8M parameters; 1.1, 1.3
and 1.6 with 3.2M; and 1.3, 1.5 and 1.7 with 14.6M. Environments also compute on the second core."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the local policy: memory, threads and time."""

    context_window: int | None = None
    """Maximum number of tokens in one sequence, or None for the model's configured maximum."""
    cache_bytes: int | None = None
    """Maximum bytes of keys and values, or None for no maximum. If more requests arrive than fit,
    the others wait."""
    prefill_tokens: int = 1024
    """Maximum number of prompt tokens, including padding, that one step computes besides the
    decoding rows."""
    num_threads: int = 1
    """Number of cores of the policy's own thread."""
    cores: int | None = None
    """Maximum number of cores of a step. None means all cores of the thread, or 1 for a small
    model."""
    thread: TorchThread | None = None
    """The computing thread, which a learner may share. If None, the policy creates its own."""
    completion_s: float = 1800.0
    """Seconds that a completion may take after it gets a row. While requests are queued, some
    request must get a row within the same time."""
    wave_s: float = 120.0
    """With ``deterministic=True``: seconds that a wave waits for an episode that makes no
    request."""
    command_s: float = 60.0
    """Maximum seconds for closing, and for each command. Commands run between two steps."""


@dataclass(slots=True)
class _Queue:
    """The time that an episode has waited for rows."""

    before_s: float = 0.0
    request: Request | None = None

    def seconds(self) -> float:
        """Total seconds over the finished requests and the running one."""
        return self.before_s + (self.request.queued_s() if self.request is not None else 0.0)

    def finish(self) -> None:
        """Record that the running request is over."""
        self.before_s, self.request = self.seconds(), None


class LocalPolicy:
    """Samples from a transformers model in this process; see :class:`agents.policy.Policy`.

    Requests are batched continuously. The keys and values of an episode are kept from turn to turn,
    until another episode needs the row; the least recently used row is taken first. The prompt of a
    group, and any other long common prefix, is prefilled once. The cache has room for ``max_slots``
    times the longest sequence so far. If this exceeds ``limits.cache_bytes``, the cache has fewer
    rows, and requests wait for rows. On a GPU the cache is freed when all episodes have ended.

    The model is shared, not copied. A learner can train the model in place while nothing is
    generated, and must call ``load_weights(None, version)`` after each update. If weights change
    without this call, generating raises PolicyFailure.

    Args:
        model: any causal language model with a cache. Llama, Mistral, Qwen2 and Qwen3 are fastest.
            Other models use their own forward pass (see ``forward_kind``): in batches if it
            supports them, otherwise one row at a time, which is slow and logs a warning.
        tokenizer: the tokenizer, which decodes the end of a completion to find stop strings.
        max_slots: maximum number of requests that are computed at the same time.
        device: device to which the model is moved first, or None to leave it where it is.
        seed: seed of requests that have no seed themselves.
        deterministic: whether to admit requests in waves, so that two runs with the same requests
            agree bit for bit. When every announced episode has a request or has ended, one wave
            runs to its end. Episodes that are announced after all earlier ones ended start with an
            empty cache. If the requests have seeds, the results do not depend on earlier
            generations either.
        limits: memory, threads and deadlines.
        shares_weights: whether a learner trains this model in place. If False, the learner has its
            own model and calls ``load_weights(weights, version)``.

    Raises:
        ValueError: an argument is out of range, or the model's cache is not supported.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_slots: int = 64,
        device: str | torch.device | None = None,
        seed: int = 0,
        deterministic: bool = False,
        limits: Limits | None = None,
        shares_weights: bool = True,
    ) -> None:
        if max_slots < 1:
            raise ValueError(f"max_slots ({max_slots}) must be >= 1")
        limits = limits or Limits()
        self.shares_weights = shares_weights
        if device is not None:
            # Called on the class: the model's own `to` is decorated and has no type.
            torch.nn.Module.to(model, device)
        self._model = model
        self._limits = limits
        self._deterministic = deterministic
        embedding = model.get_input_embeddings()
        assert isinstance(embedding, torch.nn.Embedding)
        self._vocab_size = embedding.num_embeddings
        self._context_window = limits.context_window or context_window(model.config)
        stable = rope_window(model.config)
        if stable is not None and stable < self._context_window:
            raise ValueError(
                f"the context window ({self._context_window}) must be at most {stable}, beyond "
                f"which the rotary embeddings of {type(model).__name__} change the keys of earlier "
                f"tokens: set context_length={stable} or use policy=vllm-server"
            )
        self._max_positions = sys.maxsize
        if limits.cache_bytes is not None:
            self._max_positions = limits.cache_bytes // position_bytes(model)
        forward = _make_forward(model, self._context_window, self._max_positions)
        self.forward_kind = forward.kind
        """``"thin"``; ``"batched"`` for the model's own forward pass, in batches; or
        ``"transformers"`` for the model's own forward pass, one row at a time."""
        self._engine = Engine(
            model,
            forward,
            StopStringTable(tokenizer, self._vocab_size),
            # An update makes all keys and values invalid, and needs a GPU's memory itself.
            cache=CacheLimits(max_slots, self._max_positions, model.device.type == "cuda"),
            context_window=self._context_window,
            prefill_tokens=limits.prefill_tokens,
            seed=seed,
        )
        self._gate = Gate(limits.wave_s) if deterministic else None
        self._own_thread: TorchThread | None = None
        if limits.thread is None:
            self._own_thread = TorchThread(limits.num_threads, "local-policy")
        thread = limits.thread or self._own_thread
        assert thread is not None
        self._worker = Worker(
            self._engine, self._gate, thread, limits.command_s, limits.cores or _useful_cores(model)
        )
        self._queues: dict[str, _Queue] = {}

    @property
    def version(self) -> int:
        """The version of the weights from which the next token is sampled."""
        return self._engine.version

    @property
    def context_window(self) -> int:
        """Maximum number of tokens in one sequence."""
        return self._context_window

    def stats(self) -> Stats:
        """Counters since the policy's creation."""
        return self._engine.stats()

    def begin(self, sessions: Sequence[str]) -> None:
        """Announce episodes, in the order of their priority."""
        gate, announced = self._gate, list(sessions)
        if gate is None:
            return

        def announce() -> None:
            # The cache's content changes the last bits of results. At this point a resumed run has
            # an empty cache, and an uninterrupted run has the cache of a validation.
            if gate.is_empty and not self._engine.busy:
                self._engine.start_anew()
            gate.announce(announced)

        self._worker.post(announce)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session: str | None = None
    ) -> Completion:
        """Sample one completion of ``prompt_ids``. Cancelling the call stops the generation.

        Raises:
            PolicyFailure: the worker failed or is closed, the weights are broken, or a deadline
                passed.
            ValueError: the prompt is empty, longer than the context window, or has ids that are no
                tokens of this model; a stop string is empty; or, in deterministic mode, the session
                was not announced.
        """
        prompt = list(prompt_ids)
        self._check(prompt, sampling)
        if len(prompt) == self._context_window:
            return Completion((), (), (), FinishReason.CONTEXT_FULL)
        request = Request(prompt, sampling, session)
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._worker.submit(request, answer)
        queue = self._queues.setdefault(session, _Queue()) if session is not None else _Queue()
        queue.request = request
        try:
            return await self._await(request, answer)
        finally:
            queue.finish()
            # The caller is gone. Cancelling a finished future does nothing.
            if answer.cancel():
                self._worker.cancel(request)

    def queued_s(self, session: str) -> float:
        """Seconds that the session's requests waited for a row, so far."""
        queue = self._queues.get(session)
        return queue.seconds() if queue is not None else 0.0

    def end(self, session: str) -> None:
        """Release the row of an episode that is over."""
        self._queues.pop(session, None)
        target = self._engine if self._gate is None else self._gate
        # A closed worker has released its rows already.
        with contextlib.suppress(PolicyFailure):
            self._worker.post(lambda: target.end(session))

    async def load_weights(self, weights: Mapping[str, torch.Tensor] | None, version: int) -> None:
        """Load weights. All tokens that are sampled after the call come from them.

        Args:
            weights: weights by their names in the model's ``state_dict``, which are copied. None if
                the shared model changed in place.
            version: version that is recorded with every token from now on.

        Raises:
            ValueError: a name is unknown or missing, or a shape differs.
            PolicyFailure: the worker failed or does not answer, or the model has other weights
                after the call.
        """
        if weights is not None:
            check_weights(self._model, weights)

        def load() -> None:
            if weights is not None:
                copy_weights(self._model, weights)
            self._engine.weights_changed(version)
            if weights is not None:
                verify_weights(self._model, weights, version)

        await self._worker.acall(load)

    def progress(self) -> float:
        """A number that changes with each step of the engine and each version of the weights."""
        return float(self._engine.stats().num_steps + self._engine.version)

    def component_status(self) -> dict[str, str]:
        """What the thread that generates is doing."""
        asked = sum(queue.request is not None for queue in list(self._queues.values()))
        return {"generation thread": f"asked for {asked} completions"}

    def facts(self) -> dict[str, object]:
        """Properties of the policy that a run records."""
        return {"policy": "local", "forward": self.forward_kind}

    def take_metrics(self) -> dict[str, float]:
        """An empty dict, because :meth:`stats` has the totals."""
        return {}

    async def close(self) -> None:
        """Close the policy and its own thread. Running calls raise PolicyFailure."""
        await self._worker.close()
        if self._own_thread is not None:
            await self._own_thread.close()

    async def _await(self, request: Request, answer: asyncio.Future[Completion]) -> Completion:
        """Wait for the completion, within the deadlines of queue and computation."""
        while True:
            since = request.placed_at or max(request.asked_at, self._engine.placed_at)
            left = since + self._limits.completion_s - time.monotonic()
            if left <= 0:
                state = "queued" if request.placed_at is None else "computed"
                raise PolicyFailure(
                    f"no completion: {state} for {self._limits.completion_s:g} s, "
                    f"{len(request.token_ids)} tokens so far",
                    retryable=True,
                )
            await asyncio.wait([answer], timeout=left)
            if answer.done():
                return answer.result()

    def _check(self, prompt: list[int], sampling: SamplingParams) -> None:
        if not prompt:
            raise ValueError("prompt_ids is empty: at least one token must come before the first")
        if len(prompt) > self._context_window:
            raise ValueError(
                f"prompt_ids has {len(prompt)} tokens, the context window {self._context_window}: "
                "end the episode or shorten its context"
            )
        if min(prompt) < 0 or max(prompt) >= self._vocab_size:
            wrong = next(token for token in prompt if not 0 <= token < self._vocab_size)
            raise ValueError(
                f"prompt_ids holds {wrong}, the model has tokens 0 to {self._vocab_size - 1}: "
                "encode with the tokenizer of this model"
            )
        needed = min(len(prompt) + sampling.max_tokens, self._context_window)
        if needed > self._max_positions:
            raise PolicyFailure(
                f"a completion may have {needed} tokens with its prompt, but the cache has room "
                f"for {self._max_positions}: give it more memory (policy.cache_gb), or shorten "
                "the episodes (context_length) or turns (sampling.max_tokens)",
                retryable=False,
            )
        if "" in sampling.stop:
            raise ValueError("sampling.stop holds an empty string, which would stop at once")


def _make_forward(model: PreTrainedModel, context_window: int, max_positions: int) -> Forward:
    obstacle = thin_obstacle(model, context_window)
    if obstacle is None:
        return ThinForward(model, max_positions)
    name = type(model).__name__
    trial = trial_of(model)
    own = trial is model
    unbatched = batch_obstacle(trial, own=own)
    if unbatched is None:
        _log.info("batches pass through %s itself: the fast forward pass %s", name, obstacle)
        return BatchedForward(model)
    counts, unsupported = False, difference(TransformersForward(trial), trial, own=own)
    if unsupported is not None and "position_ids" in signature(model.forward).parameters:
        counted = TransformersForward(trial, positions=True)
        counts = difference(counted, trial, own=own) is None
    if unsupported is not None and not counts:
        raise ValueError(
            f"policy=local cannot sample from {name}, whose cache it does not support "
            f"({unsupported}): use policy=vllm-server or another model"
        )
    _log.warning("rows pass through %s itself, one at a time, which is slow: %s", name, unbatched)
    return TransformersForward(model, positions=counts)


def _useful_cores(model: PreTrainedModel) -> int | None:
    """1 for a model that is too small to profit from several cores, otherwise None."""
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, torch.nn.Embedding)
    size = model.num_parameters() - embedding.weight.numel()
    return 1 if size < _PARALLEL_FROM else None
