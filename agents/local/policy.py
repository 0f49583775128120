"""The policy that runs a transformers model in this process, on a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from agents.completion import Completion, FinishReason, SamplingParams
from agents.local.engine import Engine, Stats
from agents.local.fallback import TransformersForward
from agents.local.forward import Forward, ThinForward, thin_obstacle
from agents.local.request import Request
from agents.local.stops import StopStringTable
from agents.local.thread import TorchThread
from agents.local.waves import Gate
from agents.local.weights import check_weights, copy_weights
from agents.local.worker import Worker
from agents.policy import PolicyFailure

_log = logging.getLogger(__name__)
_PARALLEL_FROM = 2_000_000
"""Parameters without the embeddings. On two cores a forward of 16, 64 and 128 rows by two threads
was 0.9, 1.2 and 1.2 times as fast as by one with 0.8M parameters, 1.1, 1.3 and 1.6 times with 3.2M,
1.3, 1.5 and 1.7 times with 14.6M. The second core is also what environments compute with."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the local policy may take: room, threads and time."""

    context_window: int | None = None
    """Tokens of one sequence; None: what the model was configured for."""
    prefill_tokens: int = 1024
    """Prompt tokens, padding included, that are computed in one step beside the decoding rows."""
    num_threads: int = 1
    """Cores that the policy computes with, where it has a thread of its own."""
    thread: TorchThread | None = None
    """The thread that computes, which a learner may share; None: one of the policy's own."""
    completion_s: float = 1800.0
    """Deadline of one completion from when it gets a row; of one that queues, from when the queue
    moved last."""
    wave_s: float = 120.0
    """With ``deterministic=True``: how long a wave waits for an episode that does not ask."""
    command_s: float = 60.0
    """Deadline of a command, which is obeyed between two steps, and of closing."""


@dataclass(slots=True)
class _Queue:
    """How long an episode has waited for rows."""

    before_s: float = 0.0
    request: Request | None = None

    def seconds(self) -> float:
        """Over the requests that were answered, and the one under way."""
        return self.before_s + (self.request.queued_s() if self.request is not None else 0.0)

    def leave(self) -> None:
        """The request under way is over."""
        self.before_s, self.request = self.seconds(), None


class LocalPolicy:
    """Samples from a transformers model in this process; see :class:`agents.policy.Policy`.

    Requests are batched continuously. The keys and values of an episode stay from turn to turn,
    until its row is needed (least recently used first); the prompt of a group, and any other long
    common prefix, is prefilled once. Memory for them is ``max_slots`` times the longest sequence
    so far.

    The model is shared, not copied: a learner may train it in place while nothing is generated,
    and calls ``load_weights(None, version)`` after each update. Generating from weights that
    changed without that call raises PolicyFailure.

    Args:
        model: any causal language model; Llama, Mistral, Qwen2 and Qwen3 are fast, the others
            go through their own forward, slowly, with a warning (``forward_kind`` tells).
        tokenizer: decodes the tail of a completion where a stop string may end.
        max_slots: how many requests are computed together.
        device: where to move the model first; None leaves it.
        seed: of the randomness for requests that bring no seed.
        deterministic: admit requests in waves: all announced episodes ask or end, then one wave
            runs to its end. Episodes announced when all before them ended meet an empty cache.
            Two runs with the same requests agree bit for bit; where these bring their seeds,
            whatever was generated before.
        limits: room, threads and deadlines.
        shares_weights: whether a learner trains this very model; False where it has its own, and
            hands over what it learned by ``load_weights(weights, version)``.

    Raises:
        ValueError: an argument is out of range.
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
            # Called on the class: the model's own `to` is decorated and lost its type.
            torch.nn.Module.to(model, device)
        self._model = model
        self._limits = limits
        self._deterministic = deterministic
        embedding = model.get_input_embeddings()
        assert isinstance(embedding, torch.nn.Embedding)
        self._vocab_size = embedding.num_embeddings
        self._context_window = limits.context_window or model.config.max_position_embeddings
        forward = _make_forward(model, max_slots, self._context_window)
        self.forward_kind = forward.kind
        """``"thin"``, or ``"transformers"`` for the slow way."""
        self._engine = Engine(
            model,
            forward,
            StopStringTable(tokenizer, self._vocab_size),
            max_slots=max_slots,
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
            self._engine, self._gate, thread, limits.command_s, _useful_cores(model)
        )
        self._queues: dict[str, _Queue] = {}

    @property
    def version(self) -> int:
        """The version of the weights that the next token is sampled from."""
        return self._engine.version

    def stats(self) -> Stats:
        """What was generated, saved and spent since the policy was made."""
        return self._engine.stats()

    def begin(self, sessions: Sequence[str]) -> None:
        """Announce episodes that are about to ask, in the order in which they count."""
        gate, announced = self._gate, list(sessions)
        if gate is None:
            return

        def announce() -> None:
            # What is cached decides what is computed anew, and so the last bits of a result. A
            # resumed run has an empty cache where an uninterrupted one has seen a validation.
            if gate.is_empty and not self._engine.busy:
                self._engine.start_anew()
            gate.announce(announced)

        self._worker.post(announce)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session: str | None = None
    ) -> Completion:
        """Sample one completion of ``prompt_ids``; cancelling the call stops the generation.

        Raises:
            PolicyFailure: the worker failed or closed, the weights are broken, or a deadline
                passed.
            ValueError: the prompt is empty, longer than the context window or no token ids of
                this model; a stop string is empty; in deterministic mode, the session was not
                announced.
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
            queue.leave()
            # Nobody awaits it any more: a no-op where it is done.
            if answer.cancel():
                self._worker.cancel(request)

    def queued_s(self, session: str) -> float:
        """Seconds that the session's requests waited for a row so far."""
        queue = self._queues.get(session)
        return queue.seconds() if queue is not None else 0.0

    def end(self, session: str) -> None:
        """The episode is over: its row may go to another one."""
        self._queues.pop(session, None)
        target = self._engine if self._gate is None else self._gate
        # Of a thread that is over nothing is left to give back.
        with contextlib.suppress(PolicyFailure):
            self._worker.post(lambda: target.end(session))

    async def load_weights(self, weights: Mapping[str, torch.Tensor] | None, version: int) -> None:
        """Sample from these weights from the next token on; returns when that is so.

        Args:
            weights: by the names of the model's ``state_dict``, copied into the model; None when
                the shared model was changed in place.
            version: recorded with every token that is sampled from now on.

        Raises:
            ValueError: a name is unknown or missing, or a shape differs.
            PolicyFailure: the worker failed or does not answer.
        """
        if weights is not None:
            check_weights(self._model, weights)

        def load() -> None:
            if weights is not None:
                copy_weights(self._model, weights)
            self._engine.weights_changed(version)

        await self._worker.acall(load)

    def progress(self) -> float:
        """Steps of the engine, and versions of the weights."""
        return float(self._engine.stats().num_steps + self._engine.version)

    def component_status(self) -> dict[str, str]:
        """What the thread does that generates."""
        asked = sum(queue.request is not None for queue in list(self._queues.values()))
        return {"generation thread": f"asked for {asked} completions"}

    def facts(self) -> dict[str, object]:
        """What a run records of its policy."""
        return {"policy": "local", "forward": self.forward_kind}

    def take_metrics(self) -> dict[str, float]:
        """Nothing that a step should say; :meth:`stats` has the totals."""
        return {}

    async def close(self) -> None:
        """End the policy, and its own thread; running calls fail with PolicyFailure."""
        await self._worker.close()
        if self._own_thread is not None:
            await self._own_thread.close()

    async def _await(self, request: Request, answer: asyncio.Future[Completion]) -> Completion:
        """The answer, while the deadline of its computing and of the queue's moving are kept."""
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
        if "" in sampling.stop:
            raise ValueError("sampling.stop holds an empty string, which would stop at once")


def _make_forward(model: PreTrainedModel, max_slots: int, context_window: int) -> Forward:
    obstacle = thin_obstacle(model, context_window)
    if obstacle is None:
        return ThinForward(model, max_slots)
    _log.warning(
        "generating through the forward of %s itself, one row at a time, which is slow: %s",
        type(model).__name__,
        obstacle,
    )
    return TransformersForward(model, max_slots)


def _useful_cores(model: PreTrainedModel) -> int | None:
    """One for a model whose operations are too small to be shared; None: all that there are."""
    embedding = model.get_input_embeddings()
    assert isinstance(embedding, torch.nn.Embedding)
    size = model.num_parameters() - embedding.weight.numel()
    return 1 if size < _PARALLEL_FROM else None
