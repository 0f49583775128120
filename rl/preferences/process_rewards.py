"""Learning what each step of a solution is worth: a process reward model, one update at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from agents.segment import Segment
from rl.data.steps import TokenSteps
from rl.learner.optimizer import Optimizer
from rl.learner.settings import OptimizerConfig
from rl.preferences.reward_model import RewardModel
from rl.preferences.updater import checked_step, cut


class ProcessUpdater:
    """Trains a reward model to give each step's last token the log-odds of its label.

    Math-Shepherd (arXiv 2312.08935, equation 4): cross-entropy at every step; labels may be soft.

    Args:
        rewarder: what is trained.
        optimizer: how weights change.
        max_tokens_per_micro_batch: most tokens, padding counted, in one forward pass; nothing else
            depends on it.

    Raises:
        ValueError: the bound is below 1.
    """

    def __init__(
        self,
        rewarder: RewardModel,
        optimizer: OptimizerConfig,
        max_tokens_per_micro_batch: int = 4096,
    ) -> None:
        if max_tokens_per_micro_batch < 1:
            raise ValueError(
                f"max_tokens_per_micro_batch ({max_tokens_per_micro_batch}) must be >= 1"
            )
        self.rewarder = rewarder
        self.optimizer = Optimizer(rewarder.parameters(), optimizer)
        self.max_tokens_per_micro_batch = max_tokens_per_micro_batch

    def update(self, solutions: Sequence[TokenSteps]) -> dict[str, float]:
        """One optimizer step on the mean over all steps of all solutions.

        Returns:
            ``loss``, ``accuracy`` over the steps, ``grad_norm`` before clipping and
            ``learning_rate``.

        Raises:
            RunFailure: the loss or the gradient is not finite; the weights are as before.
            BrokenWeights: the step spoilt them.
        """
        count = sum(len(solution.ends) for solution in solutions)
        total, right = 0.0, 0.0
        for part in self._parts(solutions):
            logits = self.rewarder.score_steps([s.segment for s in part], [s.ends for s in part])
            labels = torch.tensor([x for s in part for x in s.labels], dtype=torch.float64)
            loss = binary_cross_entropy_with_logits(logits, labels, reduction="sum") / count
            loss.backward()
            total += loss.item()
            right += ((logits > 0) == (labels > 0.5)).sum().item()
        rate = self.optimizer.learning_rate
        norm = checked_step(self.optimizer, total)
        return {
            "loss": total,
            "accuracy": right / count,
            "grad_norm": norm,
            "learning_rate": rate,
        }

    @torch.no_grad()
    def agreements(self, solutions: Sequence[TokenSteps]) -> list[float]:
        """Of every step, whether it is put on the side of 0.5 that its label is on: 1 or 0."""
        found = []
        for part in self._parts(solutions):
            logits = self.rewarder.score_steps([s.segment for s in part], [s.ends for s in part])
            labels = torch.tensor([x for s in part for x in s.labels], dtype=torch.float64)
            found += ((logits > 0) == (labels > 0.5)).double().tolist()
        return found

    def _parts(self, solutions: Sequence[TokenSteps]) -> Iterator[list[TokenSteps]]:
        widths = [len(solution.segment) for solution in solutions]
        for places in cut(widths, self.max_tokens_per_micro_batch):
            yield [solutions[i] for i in places]


@torch.no_grad()
def step_scores(
    rewarder: RewardModel,
    segments: Sequence[Segment],
    ends: Sequence[Sequence[int]],
    max_tokens: int = 4096,
) -> list[Tensor]:
    """The probability of each step of each solution, from 0 to 1.

    Args:
        rewarder: who gives it.
        segments: the solutions, each with its prompt.
        ends: the place of each step's last token; at least one step for each solution.
        max_tokens: most tokens, padding counted, in one forward pass.

    Returns:
        For each solution ``[S]`` float64.
    """
    found = [torch.empty(0)] * len(segments)
    for places in cut([len(segment) for segment in segments], max_tokens):
        logits = rewarder.score_steps([segments[i] for i in places], [ends[i] for i in places])
        parts = logits.sigmoid().split([len(ends[i]) for i in places])
        for place, scores in zip(places, parts, strict=True):
            found[place] = scores
    return found
