"""The proof that weights arrived: a server and the learner give a probe the same log-probabilities.

Nothing else tells. A server answers 200 for a checkpoint of which it dropped the head, its version
is a label that anybody may set, and its checksums are of empty tensors where it packed the weights.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

from agents.completion import SamplingParams
from agents.policy import PolicyFailure
from agents.vllm.instance import Instance

Score = Callable[[Sequence[int], float, Sequence[Sequence[int]]], Awaitable[Sequence[float]]]
"""From token ids, a temperature and what the last of them were sampled from (none: from the whole
vocabulary) to the learner's log-probability of each token but the first."""
PROMPT_TOKENS, SAMPLED_TOKENS = 48, 16
PROBE_TOKENS = PROMPT_TOKENS + SAMPLED_TOKENS
"""The window that a probe needs."""


class WeightsDiffer(PolicyFailure):
    """Raised when a server does not sample from the weights that it was given."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What a probe of a version showed."""

    version: int
    difference: float
    """The largest absolute difference of a log-probability, in nats."""


class Prober:
    """Compares servers with the learner.

    Args:
        score: the learner's own scores, with the weights that were handed over last.
        vocab_size: the probe's tokens are drawn below it.
        sampling: how episodes are sampled.
        tolerance: the largest difference of a log-probability that is let pass, in nats.
        seed: of the probe's tokens.
    """

    def __init__(
        self,
        score: Score,
        vocab_size: int,
        *,
        sampling: SamplingParams,
        tolerance: float,
        seed: int = 0,
    ) -> None:
        self._score = score
        self.tolerance = tolerance
        drawn = random.Random(seed)
        self._prompt = [drawn.randrange(vocab_size) for _ in range(PROMPT_TOKENS)]
        self._sampling = replace(
            sampling, max_tokens=SAMPLED_TOKENS, stop=(), stop_token_ids=(), seed=seed + 1
        )
        self._expected: dict[int, list[float]] = {}

    async def expect(self, version: int) -> None:
        """Remember what the learner says of the probe now, as ``version``.

        The version before is remembered as well: a server on its way back may be given that one.
        """
        scores = list(await self._score(self._prompt, 1.0, ()))
        former = list(self._expected.items())[-1:]
        self._expected = dict(former) | {version: scores}

    async def prove(self, replica: Instance, version: int, *, sampled: bool = True) -> Proof:
        """Probe a server that runs ``version``.

        Args:
            replica: the server.
            version: one of the two that :meth:`expect` was last called for.
            sampled: whether what it samples is compared as well, which the learner must score with
                the very weights: False where it may have gone on.

        Raises:
            WeightsDiffer: it runs other weights, or calls them by another version.
            Unreachable, Refused: there is no answer.
        """
        found, completion = await replica.probe(self._prompt, self._sampling, version)
        wrong = next((v for v in completion.versions if v != version), version)
        if wrong != version:
            raise WeightsDiffer(
                f"{replica.url} samples from version {wrong} after an update to {version}",
                retryable=False,
            )
        differences = _differences(found, self._expected[version])
        where = "read"
        read = max(differences)
        if sampled:
            both = [*self._prompt, *completion.token_ids]
            temperature, supports = self._sampling.temperature, completion.supports or ()
            scored = list(await self._score(both, temperature, supports))
            more = _differences(completion.logprobs, scored[len(self._prompt) - 1 :])
            differences += more
            if read <= self.tolerance:
                where = "sampled"
        largest = max(differences)
        # Written so that nan fails.
        if not largest <= self.tolerance:
            raise WeightsDiffer(self._told(replica, version, largest, where), retryable=False)
        return Proof(version, largest)

    def _told(self, replica: Instance, version: int, largest: float, where: str) -> str:
        message = (
            f"{replica.url} does not run version {version} of the weights: a token it {where} has "
            f"a log-probability {largest:.3g} nats from the learner's (at most "
            f"{self.tolerance:g} is let pass)"
        )
        if where == "sampled":
            message += (
                f"; those that it read agree: start it with --logprobs-mode processed_logprobs, so "
                f"that log-probabilities are those at temperature "
                f"{self._sampling.temperature:g}"
            )
        return message


def _differences(found: Sequence[float], expected: Sequence[float]) -> list[float]:
    return [abs(a - b) for a, b in zip(found, expected, strict=True)]
