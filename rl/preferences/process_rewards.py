"""Process reward models: training on labelled steps of solutions, and scores of steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from agents.segment import Segment
from rl.data.steps import TokenSteps
from rl.learner.optimizer import Optimizer
from rl.learner.ranks.world import SOLO, World
from rl.learner.settings import OptimizerConfig
from rl.preferences.reward_model import RewardModel
from rl.preferences.updater import Passes, checked_step


class ProcessUpdater:
    """Trains a reward model to score each step's last token with the log-odds of its label.

    The loss is the cross-entropy at every step (Math-Shepherd, arXiv 2312.08935, equation 4).
    Labels can be soft, such as 0.7.

    Args:
        rewarder: the reward model to train.
        optimizer: the optimizer's settings.
        max_tokens_per_micro_batch: maximum tokens of one forward pass, padding included. Results do
            not depend on it.
        world: the ranks that compute each step together. The rewarder's weights are divided.

    Raises:
        ValueError: ``max_tokens_per_micro_batch`` is below 1.
    """

    def __init__(
        self,
        rewarder: RewardModel,
        optimizer: OptimizerConfig,
        max_tokens_per_micro_batch: int = 4096,
        world: World = SOLO,
    ) -> None:
        self.passes = Passes(rewarder, max_tokens_per_micro_batch, world)
        self.rewarder = rewarder
        world.shard(rewarder.root)
        self.optimizer = Optimizer(rewarder.parameters(), optimizer, world=world)

    def update(self, solutions: Sequence[TokenSteps]) -> dict[str, float]:
        """Make one optimizer step on the mean loss over all steps of all solutions.

        Returns:
            ``loss``, ``accuracy`` over the steps, ``grad_norm`` before clipping and
            ``learning_rate``.

        Raises:
            RunFailure: the loss or gradient is not finite; the weights have not changed.
            BrokenWeights: the step made weights that are not finite.
        """
        count = sum(len(solution.ends) for solution in solutions)
        found = list[tuple[float, int]]()
        for logits, labels, weight in self._scored(solutions):
            loss = binary_cross_entropy_with_logits(logits, labels, reduction="sum") / count
            self.optimizer.backward(weight * loss)
            if weight:
                found.append((loss.item(), int(_agree(logits, labels).sum())))
        losses, right = zip(*self.passes.of_all_ranks(found), strict=True)
        total, rate = sum(losses), self.optimizer.learning_rate
        norm = checked_step(self.optimizer, total)
        return {
            "loss": total,
            "accuracy": sum(right) / count,
            "grad_norm": norm,
            "learning_rate": rate,
        }

    @torch.no_grad()
    def agreements(self, solutions: Sequence[TokenSteps]) -> list[float]:
        """For each step, 1 if its score and its label are on the same side of 0.5, else 0."""
        found = list[float]()
        for logits, labels, weight in self._scored(solutions):
            if weight:
                found += _agree(logits, labels).double().tolist()
        return self.passes.of_all_ranks(found)

    def _scored(self, solutions: Sequence[TokenSteps]) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Scores and labels of the steps of this rank's passes, with the weight of each pass."""
        for part, weight in self.passes.divide([solution.segments for solution in solutions]):
            own = [solutions[i] for i in part]
            logits = self.rewarder.score_steps([s.segment for s in own], [s.ends for s in own])
            labels = torch.tensor([x for s in own for x in s.labels], dtype=torch.float64)
            yield logits, labels, weight


def _agree(logits: Tensor, labels: Tensor) -> Tensor:
    """Whether each score and its label are on the same side of 0.5."""
    return (logits > 0) == (labels > 0.5)


@torch.no_grad()
def step_scores(
    rewarder: RewardModel,
    segments: Sequence[Segment],
    ends: Sequence[Sequence[int]],
    max_tokens: int = 4096,
) -> list[Tensor]:
    """The probability, for each step of each solution, that the step leads to a right answer.

    Args:
        rewarder: the process reward model.
        segments: the solutions, each with its prompt.
        ends: the position of each step's last token; at least one step for each solution.
        max_tokens: maximum tokens of one forward pass, padding included.

    Returns:
        For each solution, ``[S]`` float64 numbers from 0 to 1.
    """
    found = [torch.empty(0)] * len(segments)
    for part in rewarder.parts([[segment] for segment in segments], max_tokens):
        logits = rewarder.score_steps([segments[i] for i in part], [ends[i] for i in part])
        split = logits.sigmoid().split([len(ends[i]) for i in part])
        for i, scores in zip(part, split, strict=True):
            found[i] = scores
    return found
