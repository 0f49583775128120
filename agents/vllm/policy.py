"""The policy that asks vLLM servers; see :class:`agents.policy.Policy`.

A request is whole in itself, so one whose server died, hung or lost its connection is asked again,
with the same seed, of another server or of the same one when it is back. The episode notices
nothing; the policy counts it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from agents.completion import Completion, FinishReason, SamplingParams
from agents.policy import Busy, PolicyFailure
from agents.vllm.dispatch import Dispatcher
from agents.vllm.errors import Lost, Refused, Unreachable
from agents.vllm.instance import Handover
from agents.vllm.member import GENERATE, RESTART, SYNC, Member
from agents.vllm.proof import Prober
from agents.vllm.transfer import Transfer
from agents.vllm.weights import UnfitWeights, WeightFolders

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)
T = TypeVar("T")
MAX_REISSUES = 8
"""How often one request is asked again: one that ends every server must not go on for ever."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long each thing may take, in seconds."""

    request_s: float = 1800.0
    """A completion, all its attempts together, without the time in which no server had room; and
    the time in which none gets room."""
    stall_s: float = 60.0
    """A server that is asked and neither reads nor samples a token for so long hangs."""


async def all_of(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """What each of them returns; when all are over, the first failure is raised."""
    ended = await asyncio.gather(*work, return_exceptions=True)
    results: list[T] = []
    for end in ended:
        if isinstance(end, BaseException):
            raise end
        results.append(end)
    return results


class VLLMServerPolicy:
    """Samples from vLLM servers that all run the same weights.

    After :meth:`open`, the first :meth:`load_weights` hands them the learner's weights, before
    which nothing may be asked.

    Args:
        members: the servers.
        folders: where weights are handed over.
        prober: proves that they arrived.
        context_window: tokens of one sequence, at most what the servers take.
        timeouts: deadlines.
        max_num_seqs: requests that a server computes at once, where it does not tell: so many are
            sent to it, the others wait here (:class:`~agents.vllm.dispatch.Dispatcher`).
    """

    def __init__(
        self,
        members: Sequence[Member],
        folders: WeightFolders | Transfer,
        prober: Prober,
        *,
        context_window: int,
        timeouts: Timeouts | None = None,
        max_num_seqs: int = 64,
    ) -> None:
        self._members = list(members)
        self._folders = folders
        self._prober = prober
        self._context_window = context_window
        self._timeouts = timeouts or Timeouts()
        self._version = -1
        self._dispatcher = Dispatcher(
            self._members, max_num_seqs=max_num_seqs, stuck_s=self._timeouts.request_s
        )
        self._names = itertools.count()
        self._counts: Counter[str] = Counter()
        self._sync: dict[str, float] = {}
        self._watch: asyncio.Task[None] | None = None

    shares_weights = False

    async def open(self) -> None:
        """Reach the servers, or start them.

        Raises:
            PolicyFailure: one cannot be reached or started, or takes shorter sequences.
        """
        await all_of(member.open() for member in self._members)
        for member in self._members:
            if member.replica.context_window < self._context_window:
                raise PolicyFailure(
                    f"{member.replica.url} takes {member.replica.context_window} tokens, episodes "
                    f"may have {self._context_window}: set context_length, or start it with "
                    f"--max-model-len {self._context_window}",
                    retryable=False,
                )
        self._watch = asyncio.create_task(self._watch_over())

    @property
    def version(self) -> int:
        """The version of the weights that the next token is sampled from."""
        return self._version

    @property
    def path(self) -> str:
        """The endpoint in force: "generate", or "completions", which tells no versions."""
        return ", ".join(sorted({member.replica.path for member in self._members}))

    @property
    def about(self) -> str:
        """Who samples, in a line."""
        urls = ", ".join(member.replica.url for member in self._members)
        return f"{urls}, endpoint {self.path}"

    def begin(self, sessions: Sequence[str]) -> None:
        """Announce episodes: of those that have taken equally many turns the first comes first."""
        self._dispatcher.begin(sessions)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session: str | None = None
    ) -> Completion:
        """Sample one completion of ``prompt_ids``; cancelling the call stops the generation.

        Raises:
            PolicyFailure: no server answered within the deadline, or one refuses the request, or
                does not tell which tokens top-p and top-k left, where that is asked for.
            ValueError: the prompt is empty or longer than the context window.
        """
        prompt = list(prompt_ids)
        self._check(prompt, sampling)
        if len(prompt) == self._context_window:
            return Completion((), (), (), FinishReason.CONTEXT_FULL)
        left = self._timeouts.request_s
        name = f"{session or 'turn'}-{next(self._names)}"
        request, failed = self._dispatcher.request(prompt, session), 0
        for attempt in itertools.count():
            member = await self._dispatcher.place(request)
            began = time.monotonic()
            try:
                return await member.generate(
                    prompt,
                    sampling,
                    request_id=f"{name}-{attempt}",
                    version=self._version,
                    priority=request.priority,
                    deadline_s=left,
                )
            except Refused as refusal:
                raise PolicyFailure(str(refusal), retryable=False) from refusal
            except Unreachable as error:
                left -= time.monotonic() - began
                # What ends a server ends the others' requests too, and is none of their doing.
                failed += not isinstance(error, Lost)
                if left <= 0 or failed > MAX_REISSUES:
                    message = f"no completion after {attempt + 1} attempts: {error}"
                    raise PolicyFailure(message, retryable=True) from error
                self._counts["reissued"] += 1
                # The server's loss is said once, by its member: many completions go with it.
                logger.info("a completion is asked for again: %s", error)
                member.suspect(error)
            finally:
                self._dispatcher.free(member)
        raise AssertionError("the loop ends by returning or raising")

    def queued_s(self, session: str) -> float:
        """Seconds that the session's requests waited for a server to have room, so far."""
        return self._dispatcher.queued_s(session)

    def end(self, session: str) -> None:
        """The episode is over: its server is free to forget it."""
        self._dispatcher.end(session)

    async def load_weights(self, weights: Mapping[str, torch.Tensor] | None, version: int) -> None:
        """Have every server sample from these weights, and prove that each does.

        Requests that are running go on with them. A server that fails is started again where it is
        this run's own, and gets them then.

        Raises:
            ValueError: ``weights`` is None: nothing is shared with a server.
            PolicyFailure: they are not finite, a server cannot be brought to them, or does not
                sample from them (:class:`WeightsDiffer`).
        """
        if weights is None:
            raise ValueError("weights is None: a server shares no weights with the learner")
        began = time.perf_counter()
        try:
            given: Handover = await asyncio.to_thread(self._folders.write, weights, version)
        except (UnfitWeights, OSError) as error:
            raise PolicyFailure(str(error), retryable=False) from error
        written = time.perf_counter()
        await self._prober.expect(version)
        self._dispatcher.forget()
        # Where versions are not told, no completion may have two, and none waits at the server: it
        # would be sampled from weights that are newer than those it was asked of.
        told = all(member.replica.path != "completions" for member in self._members)
        async with contextlib.nullcontext() if told else self._dispatcher.quiet():
            made = await all_of(member.load(given, version) for member in self._members)
            self._version = version
        loaded = time.perf_counter()
        self._sync = {
            "sync/write_s": written - began,
            "sync/load_s": max(seconds for seconds, _ in made),
            "sync/max_difference": max(proof.difference for _, proof in made),
            "sync/seconds": loaded - began,
        }

    def progress(self) -> float:
        """Tokens that the servers read and sampled, as they said last, and what else got done."""
        return float(sum(member.progress for member in self._members) + self._version)

    def parts(self) -> dict[str, str]:
        """What each server does."""
        return {f"vLLM {place}": member.state for place, member in enumerate(self._members)}

    def account(self, lane: Callable[[str, Sequence[str]], Busy]) -> None:
        """Have each server's seconds counted: of restarting, syncing, generating, else idle."""
        for place, member in enumerate(self._members):
            member.busy = lane(f"vllm-{place}", (RESTART, SYNC, GENERATE))

    def facts(self) -> dict[str, object]:
        """What a run records of its policy."""
        urls = [member.replica.url for member in self._members]
        return {"policy": "vllm-server", "urls": urls, "endpoint": self.path}

    def take_metrics(self) -> dict[str, float]:
        """What the last update took and showed, and what went wrong since the last call."""
        counts = {f"policy/{name}": float(count) for name, count in self._counts.items()}
        restarts = sum(member.take_restarts() for member in self._members)
        self._counts = Counter()
        always = {
            "policy/restarts": float(restarts),
            "policy/queued_s": self._dispatcher.take_mean_queued_s(),
        }
        return self._sync | {"policy/reissued": 0.0} | counts | always

    async def close(self) -> None:
        """End the servers that were started here, and delete the weights that were handed over."""
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.wait({self._watch})
        try:
            await all_of(member.close() for member in self._members)
        finally:
            await asyncio.to_thread(self._folders.close)

    async def _watch_over(self) -> None:
        """Notice servers that hang: their health page would go on saying that all is well."""
        every_s = min(self._timeouts.stall_s / 4, 5.0)
        while True:
            await asyncio.sleep(every_s)
            for member in self._members:
                if member.is_ready:
                    try:
                        await member.look(self._timeouts.stall_s)
                    except Exception:
                        # Whatever it was, the others must be looked at, and this one again.
                        logger.exception("looking at a vLLM server failed")

    def _check(self, prompt: list[int], sampling: SamplingParams) -> None:
        if self._version < 0:
            raise ValueError("no weights were loaded: call load_weights first")
        if not prompt:
            raise ValueError("prompt_ids is empty: at least one token must come before the first")
        if len(prompt) > self._context_window:
            raise ValueError(
                f"prompt_ids has {len(prompt)} tokens, the context window {self._context_window}: "
                "end the episode or shorten its context"
            )
