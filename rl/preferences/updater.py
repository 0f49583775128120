"""Training of a reward model or of a policy (DPO) on comparisons of answers.

A reward model computes an answer's reward by its head. A policy's reward is its log-probability of
the answer, relative to a reference ("your language model is secretly a reward model", DPO). Both
are trained with Bradley-Terry's loss.
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
    """A trainable model that computes rewards of answers."""

    def parameters(self) -> list[nn.Parameter]:
        """The trained parameters."""
        ...

    def parts(self, units: Sequence[Sequence[Segment]], max_tokens: int) -> list[list[int]]:
        """Divide units of answers into forward passes of at most ``max_tokens`` tokens.

        A larger unit is a pass of its own. Returns the indices of the units of each pass.
        """
        ...

    def score(self, segments: Sequence[Segment]) -> Tensor:
        """The reward of each answer, in one forward pass. ``[K]`` float64 on the CPU."""
        ...


@dataclass(frozen=True, slots=True)
class PairLosses:
    """The loss and the reward differences of some comparisons."""

    loss: Tensor
    """A scalar: the mean loss over the pairs of each comparison, summed over the comparisons."""
    differences: Tensor
    """``[P]``, reward of each pair's better answer minus the reward of the worse answer."""
    labels: Tensor
    """``[P]``, probability that the first answer of the pair is better."""

    @property
    def agreements(self) -> list[float]:
        """1 for each pair whose rewards agree with its label, 0.5 for equal rewards, else 0.

        Pairs with the label 0.5 are left out.
        """
        decided = self.labels != 0.5
        lead = self.differences[decided] * (self.labels[decided] - 0.5).sign()
        agreements: list[float] = (0.5 * (lead.sign() + 1)).tolist()
        return agreements


class PreferenceUpdater:
    """Trains a rewarder in place.

    Args:
        rewarder: the model to train.
        optimizer: the optimizer's settings.
        max_tokens_per_micro_batch: maximum number of tokens in one forward pass. Padding counts,
            and a prefix that packed answers share counts once. All answers to a prompt are in the
            same pass, even if they have more tokens. Results do not depend on it.

    Raises:
        ValueError: ``max_tokens_per_micro_batch`` is below 1.
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
        """Make one optimizer step on the mean loss over the comparisons.

        Returns:
            ``loss``, ``accuracy`` over the pairs, ``margin`` (the mean reward difference of a
            pair), ``grad_norm`` before clipping, and ``learning_rate``.

        Raises:
            RunFailure: the loss or gradient is not finite; the weights have not changed.
            BrokenWeights: the step made weights that are not finite.
        """
        loss, agreements, margins = 0.0, list[float](), list[float]()
        for part in self._parts(comparisons):
            pairs = self._compare(part)
            self.optimizer.backward(pairs.loss / len(comparisons))
            loss += pairs.loss.item() / len(comparisons)
            agreements += pairs.agreements
            margins += pairs.differences.tolist()
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
        """1 for each pair whose rewards agree with its label, 0.5 for equal rewards, else 0.

        Pairs with the label 0.5 are left out.
        """
        parts = (self._compare(part).agreements for part in self._parts(comparisons))
        return [agreement for part in parts for agreement in part]

    def rewards(self, segments: Sequence[Segment]) -> list[float]:
        """The reward of each answer."""
        return rewards_of(self.rewarder, segments, self.max_tokens_per_micro_batch)

    def anchored(self, comparisons: Sequence[TokenComparison]) -> list[TokenComparison]:
        """Copies of the comparisons, with the current rewards as ``offsets``.

        Later rewards are relative to these offsets.
        """
        rewards = iter(self.rewards([s for c in comparisons for s in c.segments]))
        return [replace(c, offsets=tuple(next(rewards) for _ in c.segments)) for c in comparisons]

    def _parts(self, comparisons: Sequence[TokenComparison]) -> Iterator[list[TokenComparison]]:
        units = [c.segments for c in comparisons]
        for part in self.rewarder.parts(units, self.max_tokens_per_micro_batch):
            yield [comparisons[i] for i in part]

    def _compare(self, comparisons: Sequence[TokenComparison]) -> PairLosses:
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
        return PairLosses((weights * losses).sum(), (better - worse).detach(), labels)


def checked_step(optimizer: Optimizer, loss: float) -> float:
    """Make an optimizer step if loss and gradient are finite, and return the gradient's norm.

    Raises:
        RunFailure: the loss or gradient is not finite; the weights have not changed.
        BrokenWeights: the step made weights that are not finite.
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
        rewarder: the model that computes the rewards.
        segments: the answers, each with its prompt.
        max_tokens: maximum tokens of one forward pass, padding included.
    """
    found = [0.0] * len(segments)
    for part in rewarder.parts([[segment] for segment in segments], max_tokens):
        rewards = rewarder.score([segments[i] for i in part]).tolist()
        for i, reward in zip(part, rewards, strict=True):
            found[i] = reward
    return found
