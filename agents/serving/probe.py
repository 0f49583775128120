"""Verifies weights, by a probe and by digests.

A probe is a short prompt. Server and learner must compute the same log-probabilities of its tokens.
A server's own report proves nothing: a server answers 200 even if a checkpoint lacks its output
head, and any client can set the version label.

In bfloat16 the probe detects no small update, because two forward passes differ by more than the
change that an optimizer step makes. If an engine reports the digest of each parameter after
loading, these digests are compared with the digests of the sent tensors. See
docs/decisions/0013-digests-show-what-a-probe-cannot.md.

The first probe of a server also samples tokens far from the start of the context, where other
frequencies of the rotary positions, or another window, show first.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from agents.completion import Completion, SamplingParams
from agents.digests.comparison import LoadedDigests, SentDigests, compare
from agents.policy import PolicyFailure
from agents.serving.client import FIRST, EngineClient

logger = logging.getLogger(__name__)

Score = Callable[[Sequence[int], float, Sequence[Sequence[int]]], Awaitable[Sequence[float]]]
"""Function that returns the learner's log-probability of each token except the first.

Its arguments are the token ids, the temperature, and the ids from which each of the last tokens was
sampled (empty for the whole vocabulary). It may return the log-probabilities of these alone.
"""
PROMPT_TOKENS, SAMPLED_TOKENS = 48, 16
PROBE_TOKENS = PROMPT_TOKENS + SAMPLED_TOKENS
"""Number of tokens that a probe needs in the context window."""
FAR_TOKENS, FAR_SAMPLED_TOKENS = 2048, 64
"""Largest number of tokens before the far tokens of a server's first probe, and their number."""
FAR_SHARE, FAR_GROWTH = 1 / 8, 4
"""The mean difference of far tokens may be this share of the tolerance, or this multiple of the
mean difference of near tokens."""
FAR_S = 600.0
"""Seconds for the far tokens. A processor reads some hundred tokens a second."""


class WeightsDiffer(PolicyFailure):
    """Raised when a server does not sample from the weights that it loaded."""


@dataclass(frozen=True, slots=True)
class Proof:
    """Result of a probe."""

    version: int
    difference: float
    """The largest absolute difference between two log-probabilities of a token, in nats."""
    num_compared: int = 0
    """Number of sent tensors whose digests were compared with those of the server's parameters."""


@dataclass(frozen=True, slots=True)
class _Expected:
    """The learner's scores of the probe, and its tensors' digests, for one version."""

    scores: list[float]
    digests: SentDigests | None


class Prober:
    """Compares servers with the learner.

    Args:
        score: returns the learner's scores, with the weights that were published last.
        vocab_size: exclusive upper limit of the probe's token ids.
        sampling: sampling parameters of the episodes.
        tolerance: largest accepted difference of a log-probability, in nats.
        seed: seed of the probe's tokens.
        context: number of tokens that a server's context has at least; 0 to sample no far tokens.
    """

    def __init__(
        self,
        score: Score,
        vocab_size: int,
        *,
        sampling: SamplingParams,
        tolerance: float,
        seed: int = 0,
        context: int = 0,
    ) -> None:
        self._score = score
        self.tolerance = tolerance
        drawn = random.Random(seed)
        self._prompt = [drawn.randrange(vocab_size) for _ in range(PROMPT_TOKENS)]
        self._sampling = replace(
            sampling, max_tokens=SAMPLED_TOKENS, stop=(), stop_token_ids=(), seed=seed + 1
        )
        count = min(FAR_TOKENS, context - FAR_SAMPLED_TOKENS)
        self._far = [drawn.randrange(vocab_size) for _ in range(count)]
        """The tokens before the far tokens; fewer than the probe's have none far away."""
        self._far_seen: set[str] = set()
        """Addresses of the servers whose far tokens were compared."""
        self._expected: dict[int, _Expected] = {}
        self._incomparable: frozenset[str] | None = None
        """Parameters that an engine transforms when it loads them; None: no digest was seen."""

    async def expect(self, version: int, digests: SentDigests | None = None) -> None:
        """Store the learner's current scores of the probe for ``version``.

        The scores of the previous version are also kept, because a restarted server may load that
        version.

        Args:
            version: the version that is published.
            digests: the digests of the sent tensors, or None to compare no digests.
        """
        scores = list(await self._score(self._prompt, 1.0, ()))
        former = list(self._expected.items())[-1:]
        self._expected = dict(former) | {version: _Expected(scores, digests)}

    async def prove(
        self,
        client: EngineClient,
        version: int,
        *,
        sampled: bool = True,
        loaded: LoadedDigests | None = None,
    ) -> Proof:
        """Probe a server that runs ``version``.

        Args:
            client: the server's client.
            version: one of the last two versions passed to :meth:`expect`.
            sampled: whether sampled tokens are compared as well. The learner scores them with its
                current weights, so pass False if the learner may have a newer version.
            loaded: the server's digests after it loaded ``version``, or None if it reported none.

        Raises:
            WeightsDiffer: the server runs other weights, or labels them with another version.
            Unreachable, Refused: the server did not answer the probe.
        """
        num_compared = 0
        sent = self._expected[version].digests
        if loaded is not None and sent is not None:
            num_compared = self._compare(client, version, sent, loaded)
        found, completion = await client.probe(self._prompt, self._sampling, version)
        wrong = next((v for v in completion.versions if v != version), version)
        if wrong != version:
            raise WeightsDiffer(
                f"{client.url} samples from version {wrong} after an update to {version}",
                retryable=False,
            )
        differences = _differences(found, self._expected[version].scores)
        where = "read"
        read = max(differences)
        if sampled:
            differences += await self._sampled(self._prompt, completion)
            if read <= self.tolerance:
                where = "sampled"
        largest = max(differences)
        # `not <=` instead of `>`, so that nan fails.
        if not largest <= self.tolerance:
            raise WeightsDiffer(self._message(client, version, largest, where), retryable=False)
        if sampled and client.url not in self._far_seen:
            await self._prove_far(client, version, fmean(differences))
            self._far_seen.add(client.url)
        return Proof(version, largest, num_compared)

    async def _prove_far(self, client: EngineClient, version: int, near: float) -> None:
        """Compare tokens that a server samples far from the start of its context.

        Args:
            client: the server's client.
            version: the version that the server runs.
            near: the mean difference near the start, in nats.

        Raises:
            WeightsDiffer: the differences are larger than near the start.
        """
        if len(self._far) <= len(self._prompt):
            return
        completion = await client.generate(
            self._far,
            replace(self._sampling, max_tokens=FAR_SAMPLED_TOKENS),
            request_id=f"probe-far-{version}",
            version=version,
            priority=FIRST,
            deadline_s=FAR_S,
        )
        far = fmean(await self._sampled(self._far, completion))
        bound = max(FAR_SHARE * self.tolerance, FAR_GROWTH * near)
        if not far <= bound:
            raise WeightsDiffer(
                f"{client.url} computes other positions than the learner: after {len(self._far)} "
                f"tokens the log-probabilities of its samples differ by {far:.3g} nats on average, "
                f"near the start by {near:.3g} (at most {bound:.3g} are rounding): compare "
                "rope_parameters and sliding_window of its configuration with the model's",
                retryable=False,
            )

    async def _sampled(self, prompt: Sequence[int], completion: Completion) -> list[float]:
        """Differences of the tokens that a server sampled after ``prompt``, in nats."""
        count = len(completion.token_ids)
        supports = completion.supports or [()] * count
        both = [*prompt, *completion.token_ids]
        scored = list(await self._score(both, self._sampling.temperature, supports))
        return _differences(completion.logprobs, scored[len(scored) - count :])

    def _compare(
        self, client: EngineClient, version: int, sent: SentDigests, loaded: LoadedDigests
    ) -> int:
        """Raise WeightsDiffer if a parameter differs; returns the number of compared tensors.

        The first weights are the ones that the server started with. If a parameter differs already
        in this first comparison, the engine transforms the parameter, and later comparisons leave
        it out.
        """
        found = compare(sent, loaded)
        if self._incomparable is None:
            changed = found.transformed
            self._incomparable = frozenset(changed)
            if changed:
                logger.warning(
                    "%s transforms %d parameters when it loads them, such as %s: their updates are "
                    "verified by the probe alone",
                    client.url,
                    len(changed),
                    changed[0],
                )
        wrong = [name for name in found.wrong if name not in self._incomparable]
        if wrong:
            raise WeightsDiffer(
                f"{client.url} does not run version {version} of the weights: {wrong[0]} "
                f"({len(wrong)} such parameters) has other values than the learner sent",
                retryable=False,
            )
        compared = found.tensors.items()
        return sum(len(tensors) for name, tensors in compared if name not in self._incomparable)

    def _message(self, client: EngineClient, version: int, largest: float, where: str) -> str:
        message = (
            f"{client.url} does not run version {version} of the weights: a token it {where} has "
            f"a log-probability {largest:.3g} nats from the learner's (the tolerance is "
            f"{self.tolerance:g})"
        )
        if where == "sampled":
            message += (
                f"; tokens of the prompt agree: the server must report log-probabilities at "
                f"temperature {self._sampling.temperature:g} (vLLM: --logprobs-mode "
                f"processed_logprobs)"
            )
        return message


def _differences(found: Sequence[float], expected: Sequence[float]) -> list[float]:
    return [abs(a - b) for a, b in zip(found, expected, strict=True)]
