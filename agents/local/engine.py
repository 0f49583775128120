"""Continuous batching: assigns requests to rows, and computes one step for all rows."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from dataclasses import dataclass

import numpy as np
import torch
from transformers import PreTrainedModel

from agents.local.forward import Batch, Forward
from agents.local.request import Request, Slot, Token
from agents.local.sampling import sample, uniforms
from agents.local.slots import CacheLimits, SlotTable, grown
from agents.local.stops import StopStringTable
from agents.local.weights import WeightWatch
from agents.policy import PolicyFailure

logger = logging.getLogger(__name__)
_WORTH_SHARING = 8
"""Minimum length of a common prefix that is copied from another row instead of being computed."""
_LARGE = 4096
"""Size of a token's support above which a warning is logged (about 100 kB of memory)."""


@dataclass(frozen=True, slots=True)
class Stats:
    """Counters of the engine since its creation."""

    num_generated_tokens: int
    num_prefill_tokens: int
    """Number of prompt tokens that were computed."""
    num_saved_tokens: int
    """Number of prompt tokens that came from a cache: of the session's last turn, or of another
    group member."""
    forward_s: float
    """Seconds spent in the model and the sampler."""
    num_steps: int
    mean_occupancy: float
    """Mean fraction of rows that decoded in a step."""


class Engine:
    """Runs requests through a model, one step at a time. Only one thread may use it.

    Rows are in three regions: rows ``[0, num_decode)`` decode, rows ``[num_decode, num_active)``
    prefill, and the others are idle. An idle row keeps its content until another request needs the
    row. Prefill stops before a prompt's last token, which is the first token to decode. Therefore
    logits are computed for decoding rows only.

    All rows have as many positions as the longest one needs. If ``max_rows`` such rows exceed
    ``max_positions``, there are fewer rows, and requests wait. A request gets a row only if all
    active rows fit even if each reaches its maximum length, so a running request never stops.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        forward: Forward,
        stops: StopStringTable,
        *,
        cache: CacheLimits,
        context_window: int,
        prefill_tokens: int,
        seed: int,
    ) -> None:
        self.version = 0
        self._warned = False
        self.pending: deque[Request] = deque()
        self.placed_at = 0.0
        """Time at which a request last got a row. Other threads read it."""
        self._forward = forward
        self._stops = stops
        self._context_window = context_window
        self._prefill_tokens = prefill_tokens
        self._seeds = np.random.default_rng(seed)
        self._cache = cache
        self._table = SlotTable(0)
        self._slots: list[Slot] = []
        self._sessions: dict[str, Slot] = {}
        self._num_decode = 0
        self._num_active = 0
        self._weights = WeightWatch(model)
        self._generated = self._computed = self._saved = self._steps = self._decoded = 0
        self._forward_s = 0.0

    @property
    def busy(self) -> bool:
        """Whether there is work for a step."""
        return bool(self.pending or self._num_active)

    def stats(self) -> Stats:
        """The current counters."""
        return Stats(
            num_generated_tokens=self._generated,
            num_prefill_tokens=self._computed,
            num_saved_tokens=self._saved,
            forward_s=self._forward_s,
            num_steps=self._steps,
            mean_occupancy=self._decoded / (max(1, self._steps) * self._cache.max_rows),
        )

    # Requests of callers.

    def submit(self, request: Request) -> None:
        """Queue a request. It starts when a row is free."""
        if request.sampling.stop:
            request.stops = self._stops.get(request.sampling.stop)
        self.pending.append(request)

    def cancel(self, request: Request) -> None:
        """Stop a queued or running request. Unknown and finished requests are ignored."""
        if request.slot is not None:
            self._release(request.slot)
        elif request in self.pending:
            self.pending.remove(request)

    def end(self, session: str) -> None:
        """Release the row that is kept for this episode."""
        slot = self._sessions.pop(session, None)
        if slot is not None:
            slot.session = None
        if self._cache.is_freed and not self._sessions and not self.busy:
            self.start_anew()

    def abandon(self) -> None:
        """Drop every request."""
        self.pending.clear()
        for slot in self._slots[: self._num_active]:
            self._release(slot)

    def weights_changed(self, version: int) -> None:
        """Drop all keys and values, because the model's weights changed.

        Running requests continue with the new weights, after their tokens are prefilled again.
        """
        self.version = version
        self._weights.accept()
        self._table.drop()
        self._forward.refresh()
        self._num_decode = 0
        self._promote_ready()

    def start_anew(self) -> None:
        """Free the cache, and restore the initial order of the rows."""
        assert not self.busy, "requests are running"
        self._table = SlotTable(0)
        self._slots = []
        self._sessions.clear()
        self._forward.reset()

    # One step.

    def step(self) -> list[Request]:
        """Admit requests, compute one forward pass, and return the finished requests."""
        self._check_weights()
        self._admit()
        if not self._num_active:
            return []
        batch = self._batch()
        started = time.perf_counter()
        logits = self._forward.run(batch)
        sampled = self._sample(logits) if self._num_decode else None
        self._check_weights()
        self._forward_s += time.perf_counter() - started
        self._steps += 1
        self._decoded += self._num_decode

        num_decode, num_chunks = self._num_decode, len(batch.chunk_sizes)
        self._table.lengths[:num_decode] += 1
        self._table.lengths[num_decode : num_decode + num_chunks] += batch.chunk_sizes
        finished = self._record(sampled) if sampled else []
        self._promote_ready()
        return finished

    def _check_weights(self) -> None:
        if self._weights.changed():
            raise PolicyFailure(
                "the model's weights changed during generation: update them while nothing is "
                "generated, and call load_weights(None, version) before the next generate",
                retryable=False,
            )

    def _admit(self) -> None:
        """Give rows to pending requests, oldest first."""
        waiting: deque[Request] = deque()
        while self.pending and self._fits(self.pending[0]):
            request = self.pending.popleft()
            if not self._place(request):
                waiting.append(request)
        self.pending = waiting + self.pending
        self._promote_ready()

    def _longest(self, request: Request | None) -> int:
        """Maximum number of positions that an active request, or ``request``, can need."""
        requests = [request, *(slot.request for slot in self._slots[: self._num_active])]
        return max(one.longest(self._context_window) for one in requests if one is not None)

    def _fits(self, request: Request) -> bool:
        """Whether the cache has room for ``request``, if every row grows to the greatest length."""
        if self._num_active == self._cache.max_rows or not self._cache.is_bounded:
            return self._num_active < self._cache.max_rows
        return (self._num_active + 1) * self._longest(request) <= self._cache.max_positions

    def _place(self, request: Request) -> bool:
        """Give ``request`` a row.

        Returns False if it must wait for a row that prefills the same prompt.
        """
        self._reserve(self._num_active + 1, len(request.prompt_ids) + 1, request)
        prompt = np.asarray(request.prompt_ids)
        # The last token never comes from a cache: decoding it gives the first logits.
        shared = np.minimum(self._table.common_prefix(prompt), len(prompt) - 1)
        cached = np.minimum(shared, self._table.lengths)
        slot = self._own_slot(request.session)
        if self._forward.shares_rows:
            donor = int(cached.argmax())
            promised = int(shared[: self._num_active].max(initial=0))
            if promised >= cached[donor] + _WORTH_SHARING:
                return False
            slot = slot or self._idle_slot()
            length = int(cached[slot.index])
            if cached[donor] >= length + _WORTH_SHARING:
                length = int(cached[donor])
                self._forward.copy(donor, slot.index, length)
        else:
            slot = slot or self._idle_slot()
            length = int(cached[slot.index])
            if length < self._table.lengths[slot.index]:
                length = 0
                self._forward.clear(slot.index)
        self._saved += length
        self._computed += len(request.prompt_ids) - length
        self._table.fill(slot.index, request.prompt_ids, length)
        self._occupy(slot, request)
        return True

    def _own_slot(self, session: str | None) -> Slot | None:
        """The idle row with this session's tokens."""
        slot = self._sessions.get(session) if session is not None else None
        return slot if slot is not None and slot.request is None else None

    def _idle_slot(self) -> Slot:
        """The idle row to reuse.

        Rows without an episode come first, then the least recently used.
        """
        slot = min(self._slots[self._num_active :], key=Slot.worth_keeping)
        if slot.session is not None:
            del self._sessions[slot.session]
            slot.session = None
        return slot

    def _occupy(self, slot: Slot, request: Request) -> None:
        slot.request, request.slot = request, slot
        self.placed_at = request.placed_at = time.monotonic()
        if request.session is not None:
            former = self._sessions.get(request.session)
            if former is not None:
                former.session = None
            slot.session = request.session
            self._sessions[request.session] = slot
        seed = request.sampling.seed
        # Drawn here and not on arrival: the caller controls the order in which rows are given.
        request.uniforms = uniforms(int(self._seeds.integers(2**63)) if seed is None else seed)
        self._swap(slot.index, self._num_active)
        self._num_active += 1

    def _release(self, slot: Slot) -> None:
        """Make the row idle. Its tokens are kept for the next turn."""
        if slot.index < self._num_decode:
            self._num_decode -= 1
            self._swap(slot.index, self._num_decode)
        self._num_active -= 1
        self._swap(slot.index, self._num_active)
        assert slot.request is not None
        slot.request.slot = None
        slot.request = None
        slot.last_used = self._steps

    def _promote_ready(self) -> None:
        """Move rows whose prompt is cached, except its last token, to the decoding region."""
        for index in range(self._num_decode, self._num_active):
            if self._table.lengths[index] == self._table.known[index] - 1:
                self._swap(index, self._num_decode)
                self._num_decode += 1

    def _swap(self, a: int, b: int) -> None:
        if a != b:
            self._forward.swap(a, b, int(self._table.lengths[[a, b]].max()))
            self._table.swap(a, b)
            first, second = self._slots[a], self._slots[b]
            first.index, second.index = b, a
            self._slots[a], self._slots[b] = second, first

    def _reserve(self, num_rows: int, length: int, request: Request | None = None) -> None:
        """Give the cache at least ``num_rows`` rows of at least ``length`` positions.

        If this needs shorter rows, they stay long enough for the active requests and ``request``.
        """
        capacity = grown(self._table.capacity, length)
        most = self._cache.max_positions // num_rows
        if self._cache.is_bounded and (length > self._table.capacity or capacity > most):
            capacity = min(capacity, most, max(length, self._longest(request)))
        rows = self._cache.num_rows(capacity)
        if (rows, capacity) != (len(self._slots), self._table.capacity):
            self._resize(rows, capacity)

    def _resize(self, num_rows: int, capacity: int) -> None:
        """Change the number of rows and positions. The idle rows least worth keeping go first."""
        count = len(self._slots) - num_rows
        if count > 0:
            idle = sorted(self._slots[self._num_active :], key=Slot.worth_keeping)
            dropped = idle[:count]
            for slot in dropped:
                if slot.session is not None:
                    del self._sessions[slot.session]
            # Swaps move the dropped rows to the end, and the kept ones before them.
            for slot in idle[count:]:
                if slot.index >= num_rows:
                    hole = next(other for other in dropped if other.index < num_rows)
                    self._swap(slot.index, hole.index)
            del self._slots[num_rows:]
        self._slots += [Slot(index) for index in range(len(self._slots), num_rows)]
        emptied = self._table.resize(num_rows, capacity)
        self._forward.reserve(num_rows, capacity)
        for row in emptied:
            self._forward.clear(row)

    def _batch(self) -> Batch:
        """The next token of every decoding row, and as much prefill as fits in one step."""
        table, first = self._table, self._num_decode
        remaining = (table.known - 1 - table.lengths)[first : self._num_active]
        # Chunks are padded to the widest one: add rows while rows x width fits.
        widest = np.maximum.accumulate(remaining)
        fits = int((widest * np.arange(1, len(widest) + 1) <= self._prefill_tokens).sum())
        count = min(len(remaining), max(1, fits))
        width = min(int(widest[count - 1]), self._prefill_tokens) if count else 0
        if (
            count > 1
            and table.end(first, count, width) * self._num_active > self._cache.max_positions
        ):
            # Padding of chunks that start late does not fit: one chunk has no padding.
            count, width = 1, min(int(remaining[0]), self._prefill_tokens)
        self._reserve(self._num_active, table.end(first, count, width))
        starts = table.lengths[: first + count].copy()
        columns = starts[first:, None] + np.arange(width)
        return Batch(
            decode_ids=table.tokens[np.arange(first), starts[:first]],
            chunk_ids=table.tokens[np.arange(first, first + count)[:, None], columns],
            chunk_sizes=np.minimum(remaining[:count], width),
            starts=starts,
        )

    def _sample(self, logits: torch.Tensor) -> list[Token]:
        """Sample one token for every decoding row."""
        requests = [slot.request for slot in self._slots[: self._num_decode]]
        params = [request.sampling for request in requests if request is not None]
        uniform = [next(request.uniforms) for request in requests if request is not None]
        drawn = sample(logits, params, uniform)
        self._warn_of_large(drawn.supports)
        token_ids, logprobs = drawn.token_ids.tolist(), drawn.logprobs.tolist()
        if not math.isfinite(sum(logprobs)):
            raise PolicyFailure(
                f"weights of version {self.version} give log-probabilities that are not finite: "
                "the last update broke the model",
                retryable=False,
            )
        return list(map(Token, token_ids, logprobs, drawn.supports))

    def _warn_of_large(self, supports: list[list[int]]) -> None:
        """Warn once if top-p leaves a large support."""
        largest = max(map(len, supports), default=0)
        if largest > _LARGE and not self._warned:
            self._warned = True
            logger.warning(
                "top_p leaves a support of %d tokens, stored with each token: set a top_k",
                largest,
            )

    def _record(self, tokens: list[Token]) -> list[Request]:
        """Append the sampled tokens to their requests, and return the finished requests."""
        self._table.append([token.id for token in tokens])
        self._generated += len(tokens)
        finished = []
        decoding = [slot.request for slot in self._slots[: len(tokens)]]
        for request, token in zip(decoding, tokens, strict=True):
            assert request is not None
            if request.append(token, self.version, self._context_window):
                finished.append(request)
        for request in finished:
            assert request.slot is not None
            if request.sampling.with_experts:
                request.experts = self._forward.experts(request.slot.index, request.num_computed)
            self._release(request.slot)
        return finished
