"""Completions from servers that all run the same weights.

Every request is self-contained. If its server dies, hangs or loses the connection, the request is
retried with the same seed, on another server or on the recovered one. The episode does not notice
this, but a metric counts the retry.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from agents.completion import Completion, FinishReason, SamplingParams
from agents.policy import PolicyFailure
from agents.serving.errors import Lost, Refused, Unreachable
from agents.serving.sampling.dispatch import Dispatcher
from agents.serving.sampling.server import SamplingServer

logger = logging.getLogger(__name__)
MAX_REISSUES = 8
"""Maximum number of retries of one request, in case a request makes every server fail."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines, in seconds."""

    request_s: float = 1800.0
    """Seconds that a completion may take with all its retries, not counting its time in the queue.
    The queue must move within the same time."""
    stall_s: float = 60.0
    """Seconds after which a server that has requests, but neither reads nor samples a token,
    counts as hanging."""


class Sampler:
    """Samples from servers, and queues requests for which no server has room.

    Args:
        servers: the servers.
        context_window: maximum number of tokens in one sequence.
        request_s: see :class:`Timeouts`.
        max_num_seqs: number of requests that a server computes at the same time, if the server does
            not report it.
        share: the part of each server's room that this process may fill.
    """

    def __init__(
        self,
        servers: Sequence[SamplingServer],
        *,
        context_window: int,
        request_s: float,
        max_num_seqs: int,
        share: float = 1.0,
    ) -> None:
        self._context_window = context_window
        self._request_s = request_s
        self._version = -1
        self._dispatcher = Dispatcher(
            servers, max_num_seqs=max_num_seqs, stuck_s=request_s, share=share
        )
        self._names = itertools.count()
        self._counts: Counter[str] = Counter()

    @property
    def version(self) -> int:
        """The version of the weights from which the next token is sampled."""
        return self._version

    def begin(self, sessions: Sequence[str]) -> None:
        """Announce episodes.

        Among episodes with equally many turns, the one announced first comes first.
        """
        self._dispatcher.begin(sessions)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session: str | None = None
    ) -> Completion:
        """Sample one completion of ``prompt_ids``. Cancelling the call stops the generation.

        Raises:
            PolicyFailure: no server answered before the deadline, a server refused the request, or
                a server does not report the sampling support that the request needs.
            ValueError: the prompt is empty or longer than the context window.
        """
        prompt = list(prompt_ids)
        self._check(prompt)
        if len(prompt) == self._context_window:
            return Completion((), (), (), FinishReason.CONTEXT_FULL)
        left = self._request_s
        name = f"{session or 'turn'}-{next(self._names)}"
        request, failed = self._dispatcher.request(prompt, session), 0
        for attempt in itertools.count():
            server = await self._dispatcher.place(request)
            began = time.monotonic()
            try:
                return await server.generate(
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
                # A lost server fails all its requests, most of which did not cause the loss. It may
                # be ready again already.
                if not isinstance(error, Lost):
                    failed += 1
                    server.mark_unhealthy(error)
                if left <= 0 or failed > MAX_REISSUES:
                    message = f"no completion after {attempt + 1} attempts: {error}"
                    raise PolicyFailure(message, retryable=True) from error
                self._counts["reissued"] += 1
                # Not a warning: the server itself warns once, and many requests fail with it.
                logger.info("a completion is retried: %s", error)
            finally:
                self._dispatcher.free(server)
        raise AssertionError("the loop ends by returning or raising")

    def queued_s(self, session: str) -> float:
        """Seconds that the session's requests waited for room on a server, so far."""
        return self._dispatcher.queued_s(session)

    def end(self, session: str) -> None:
        """Forget an episode that is over."""
        self._dispatcher.end(session)

    def _check(self, prompt: list[int]) -> None:
        if self._version < 0:
            raise ValueError("no weights were loaded: call load_weights first")
        if not prompt:
            raise ValueError("prompt_ids is empty: at least one token must come before the first")
        if len(prompt) > self._context_window:
            raise ValueError(
                f"prompt_ids has {len(prompt)} tokens, the context window {self._context_window}: "
                "end the episode or shorten its context"
            )
