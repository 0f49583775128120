"""Training of a reward model or of a policy (DPO) on comparisons of answers.

A reward model computes an answer's reward by its head. A policy's reward is its log-probability of
the answer, relative to a reference ("your language model is secretly a reward model", DPO). Both
are trained with Bradley-Terry's loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from agents.segment import Segment
from rl.data.comparisons import TokenComparison
from rl.errors import RunFailure
from rl.learner.optimizer import Optimizer
from rl.learner.ranks.world import SOLO, Root, World
from rl.learner.seam import BrokenWeights
from rl.learner.settings import OptimizerConfig
from rl.preferences.losses import bradley_terry

Item = TypeVar("Item")


class Rewarder(Protocol):
    """A trainable model that computes rewards of answers."""

    @property
    def root(self) -> Root:
        """The module through which all forward passes go."""
        ...

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


class Passes:
    """The forward passes of a rewarder, of which each rank computes its share.

    Args:
        rewarder: the model.
        max_tokens: maximum number of tokens in one forward pass; see :class:`Rewarder`.
        world: the ranks.

    Raises:
        ValueError: ``max_tokens`` is below 1.
    """

    def __init__(self, rewarder: Rewarder, max_tokens: int = 4096, world: World = SOLO) -> None:
        if max_tokens < 1:
            raise ValueError(f"max_tokens_per_micro_batch ({max_tokens}) must be >= 1")
        self.rewarder = rewarder
        self.max_tokens = max_tokens
        self.world = world
        self.on_pass: Callable[[], None] = lambda: None
        """Called at the start of each pass."""

    def divide(self, units: Sequence[Sequence[Segment]]) -> Iterator[tuple[list[int], int]]:
        """The passes of this rank: the indices of units, and a weight.

        The weight is 0 if another rank computes the same pass, and 1 otherwise: all ranks make
        equally many passes.
        """
        costs = [sum(len(segment.token_ids) for segment in unit) for unit in units]

        def cost(part: list[int]) -> int:
            return sum(costs[i] for i in part)

        parts = self.world.divided(partial(self.rewarder.parts, units), self.max_tokens, cost)
        for part, counts in self.world.share(parts, cost):
            self.on_pass()
            yield part, int(counts)

    def of_all_ranks(self, found: list[Item]) -> list[Item]:
        """What all ranks found. Collective."""
        return [item for items in self.world.gather(found) for item in items]

    @torch.no_grad()
    def rewards(self, segments: Sequence[Segment]) -> list[float]:
        """The reward of each answer. Collective."""
        passes = self.divide([[segment] for segment in segments])
        scored = [(part, self.rewarder.score([segments[i] for i in part]), w) for part, w in passes]
        found = [0.0] * len(segments)
        own = [(part, rewards.tolist()) for part, rewards, weight in scored if weight]
        for part, rewards in self.of_all_ranks(own):
            for i, reward in zip(part, rewards, strict=True):
                found[i] = reward
        return found


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
        world: the ranks that compute each step together. The rewarder's weights are divided.

    Raises:
        ValueError: ``max_tokens_per_micro_batch`` is below 1.
    """

    def __init__(
        self,
        rewarder: Rewarder,
        optimizer: OptimizerConfig,
        max_tokens_per_micro_batch: int = 4096,
        world: World = SOLO,
    ) -> None:
        self.passes = Passes(rewarder, max_tokens_per_micro_batch, world)
        self.rewarder = rewarder
        world.shard(rewarder.root)
        self.optimizer = Optimizer(rewarder.parameters(), optimizer, world=world)

    def update(self, comparisons: Sequence[TokenComparison]) -> dict[str, float]:
        """Make one optimizer step on the mean loss over the comparisons.

        Returns:
            ``loss``, ``accuracy`` over the pairs, ``margin`` (the mean reward difference of a
            pair), ``grad_norm`` before clipping, and ``learning_rate``.

        Raises:
            RunFailure: the loss or gradient is not finite; the weights have not changed.
            BrokenWeights: the step made weights that are not finite.
        """
        found = list[tuple[float, list[float], list[float]]]()
        for part, weight in self._parts(comparisons):
            pairs = self._compare(part)
            loss = pairs.loss / len(comparisons)
            self.optimizer.backward(weight * loss)
            if weight:
                found.append((loss.item(), pairs.agreements, pairs.differences.tolist()))
        losses, agreements, margins = zip(*self.passes.of_all_ranks(found), strict=True)
        rate, norm = self.optimizer.learning_rate, checked_step(self.optimizer, sum(losses))
        agreed, lead = list(chain(*agreements)), list(chain(*margins))
        return {
            "loss": sum(losses),
            "accuracy": sum(agreed) / max(len(agreed), 1),
            "margin": sum(lead) / len(lead),
            "grad_norm": norm,
            "learning_rate": rate,
        }

    @torch.no_grad()
    def agreements(self, comparisons: Sequence[TokenComparison]) -> list[float]:
        """1 for each pair whose rewards agree with its label, 0.5 for equal rewards, else 0.

        Pairs with the label 0.5 are left out.
        """
        # With a weight of 0, another rank computes the same comparisons.
        parts = [(self._compare(part), weight) for part, weight in self._parts(comparisons)]
        found = self.passes.of_all_ranks([pairs.agreements for pairs, weight in parts if weight])
        return list(chain(*found))

    def rewards(self, segments: Sequence[Segment]) -> list[float]:
        """The reward of each answer."""
        return self.passes.rewards(segments)

    def _parts(
        self, comparisons: Sequence[TokenComparison]
    ) -> Iterator[tuple[list[TokenComparison], int]]:
        for part, weight in self.passes.divide([c.segments for c in comparisons]):
            yield [comparisons[i] for i in part], weight

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


def anchored(
    comparisons: Sequence[TokenComparison], rewards: Sequence[float]
) -> list[TokenComparison]:
    """Copies of comparisons, with the reward of each of their answers as ``offsets``.

    Later rewards are relative to these offsets.
    """
    own = iter(rewards)
    return [replace(c, offsets=tuple(next(own) for _ in c.segments)) for c in comparisons]
