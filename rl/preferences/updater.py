"""Learning from comparisons: one optimizer step at a time, on whatever gives answers a reward.

A reward model does, with its head; so does a policy, with its log-probability against that of a
reference (DPO: "your language model is secretly a reward model"). The loss of both is
Bradley-Terry's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from agents.segment import Segment
from rl.data.comparisons import TokenComparison
from rl.errors import RunFailure
from rl.learner.optimizer import Optimizer
from rl.learner.seam import BrokenWeights
from rl.learner.settings import OptimizerConfig
from rl.preferences.losses import bradley_terry


class Rewarder(Protocol):
    """What gives answers a reward, and can be trained to give another."""

    def parameters(self) -> list[nn.Parameter]:
        """What is trained."""
        ...

    def score(self, segments: Sequence[Segment]) -> Tensor:
        """The reward of each answer, in one forward pass. ``[K]`` float64 on the CPU."""
        ...


@dataclass(frozen=True, slots=True)
class Judged:
    """What a rewarder says of some comparisons."""

    loss: Tensor
    """The sum over comparisons of the mean over their pairs; a scalar."""
    differences: Tensor
    """``[P]``, by how much the better answer of each pair is ahead."""
    labels: Tensor
    """``[P]``, the probability that it is the better one."""

    @property
    def agreements(self) -> list[float]:
        """1 for each pair in the order of its label, 0 for the others, 0.5 for a tie.

        Pairs that are labelled as a toss-up (0.5) are none of them.
        """
        decided = self.labels != 0.5
        ahead = self.differences[decided] * (self.labels[decided] - 0.5).sign()
        agreements: list[float] = (0.5 * (ahead.sign() + 1)).tolist()
        return agreements


class PreferenceUpdater:
    """Trains a rewarder in place.

    Args:
        rewarder: what is trained.
        optimizer: how weights change.
        max_tokens_per_micro_batch: most tokens, padding counted, in one forward pass. All answers
            to a prompt go together, whatever their number; nothing else depends on it.

    Raises:
        ValueError: the bound is below 1.
    """

    def __init__(
        self, rewarder: Rewarder, optimizer: OptimizerConfig, max_tokens_per_micro_batch: int = 4096
    ) -> None:
        if max_tokens_per_micro_batch < 1:
            raise ValueError(
                f"max_tokens_per_micro_batch ({max_tokens_per_micro_batch}) must be >= 1"
            )
        self.rewarder = rewarder
        self.optimizer = Optimizer(rewarder.parameters(), optimizer)
        self.max_tokens_per_micro_batch = max_tokens_per_micro_batch

    def update(self, comparisons: Sequence[TokenComparison]) -> dict[str, float]:
        """One optimizer step on the mean over comparisons.

        Returns:
            ``loss``, ``accuracy`` and mean ``margin`` of the pairs, ``grad_norm`` before clipping,
            ``learning_rate``.

        Raises:
            RunFailure: the loss or the gradient is not finite; the weights are as before.
            BrokenWeights: the step spoilt them.
        """
        loss, agreements, margins = 0.0, list[float](), list[float]()
        for part in self._parts(comparisons):
            judged = self._judge(part)
            (judged.loss / len(comparisons)).backward()
            loss += judged.loss.item() / len(comparisons)
            agreements += judged.agreements
            margins += judged.differences.tolist()
        rate, norm = self.optimizer.learning_rate, checked_step(self.optimizer, loss)
        return {
            "loss": loss,
            "accuracy": sum(agreements) / max(len(agreements), 1),
            "margin": sum(margins) / len(margins),
            "grad_norm": norm,
            "learning_rate": rate,
        }

    @torch.no_grad()
    def agreements(self, comparisons: Sequence[TokenComparison]) -> list[float]:
        """Of every pair, whether the rewarder prefers the same answer: 1, 0, or 0.5 for a tie."""
        parts = (self._judge(part).agreements for part in self._parts(comparisons))
        return [agreement for part in parts for agreement in part]

    def rewards(self, segments: Sequence[Segment]) -> list[float]:
        """The reward of each answer."""
        return rewards_of(self.rewarder, segments, self.max_tokens_per_micro_batch)

    def anchored(self, comparisons: Sequence[TokenComparison]) -> list[TokenComparison]:
        """The same, with rewards counted from what they are now: now is the reference."""
        rewards = iter(self.rewards([s for c in comparisons for s in c.segments]))
        return [replace(c, offsets=tuple(next(rewards) for _ in c.segments)) for c in comparisons]

    def _parts(self, comparisons: Sequence[TokenComparison]) -> Iterator[list[TokenComparison]]:
        sizes = [len(c.segments) for c in comparisons]
        for places in cut([c.width for c in comparisons], self.max_tokens_per_micro_batch, sizes):
            yield [comparisons[i] for i in places]

    def _judge(self, comparisons: Sequence[TokenComparison]) -> Judged:
        rewards = self.rewarder.score([s for c in comparisons for s in c.segments])
        offsets = [x for c in comparisons for x in c.offsets or (0.0,) * len(c.segments)]
        rewards = rewards - torch.tensor(offsets, dtype=torch.float64)
        rows, first = [], 0
        for c in comparisons:
            rows += [
                (first + p.better, first + p.worse, p.margin, p.label, c.weight) for p in c.pairs
            ]
            first += len(c.segments)
        table = torch.tensor(rows, dtype=torch.float64)
        better, worse = (rewards[table[:, column].long()] for column in (0, 1))
        margins, labels, weights = table[:, 2], table[:, 3], table[:, 4]
        losses = bradley_terry(better, worse, margins, labels)
        return Judged((weights * losses).sum(), (better - worse).detach(), labels)


def checked_step(optimizer: Optimizer, loss: float) -> float:
    """An optimizer step, unless it would spoil the weights; returns the gradient's norm.

    Raises:
        RunFailure: the loss or the gradient is not finite; the weights are as before.
        BrokenWeights: the step spoilt them.
    """
    norm = optimizer.clip_gradients().item()
    number = optimizer.num_steps + 1
    if not (math.isfinite(loss) and math.isfinite(norm)):
        optimizer.zero_grad()
        raise RunFailure(
            f"optimizer step {number} has loss {loss} and gradient norm {norm}: the weights are as "
            f"before; lower optimizer.lr"
        )
    optimizer.step()
    if not optimizer.weights_are_finite():
        raise BrokenWeights(
            f"optimizer step {number} gave weights that are not finite, from loss {loss} and "
            f"gradient norm {norm}: lower optimizer.lr"
        )
    return norm


@torch.no_grad()
def rewards_of(
    rewarder: Rewarder, segments: Sequence[Segment], max_tokens: int = 4096
) -> list[float]:
    """The reward of each answer.

    Args:
        rewarder: who gives it.
        segments: the answers, each with its prompt.
        max_tokens: most tokens, padding counted, in one forward pass.
    """
    found = [0.0] * len(segments)
    for places in cut([len(s) for s in segments], max_tokens):
        rewards = rewarder.score([segments[i] for i in places]).tolist()
        for place, reward in zip(places, rewards, strict=True):
            found[place] = reward
    return found


def cut(
    widths: Sequence[int], max_tokens: int, sizes: Sequence[int] | None = None
) -> Iterator[list[int]]:
    """Places, longest first, in parts whose padded rows are at most ``max_tokens`` together.

    Args:
        widths: tokens of each one's longest row.
        max_tokens: the bound; one that exceeds it goes alone.
        sizes: rows of each; None: one.
    """
    rows = [1] * len(widths) if sizes is None else sizes
    part: list[int] = []
    for place in sorted(range(len(widths)), key=lambda i: -widths[i]):
        held = sum(rows[i] for i in part) + rows[place]
        if part and held * widths[part[0]] > max_tokens:
            yield part
            part = []
        part.append(place)
    if part:
        yield part
