"""Metrics of one update, summed on the device and read once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl.credit.batch import Batch
from rl.credit.losses import Terms, TokenScores
from rl.learner.memory.transfers import read, uploaded
from rl.learner.ranks.world import SOLO, World
from rl.learner.scoring import ScoringModel
from rl.learner.seam import TokenRecord
from rl.rollout.trajectory import TrajectoryGroup

COMPARED_EPISODES = 8
"""Number of episodes to compare with the sampler in an update without a gradient."""
NEAR = (0.9, 1.1)
"""Range of the ratios that rounding in different kernels can explain."""


class UpdateMetrics:
    """Sums of an update's metrics, named as in TRL where TRL has the metric.

    Token means are over the scored tokens of all optimizer steps, which are the tokens of episodes
    with a gradient. ``unscored_tokens`` counts the other tokens. ``loss`` and ``grad_norm`` are
    means over optimizer steps. Only each step's loss and gradient norm leave the device before
    :meth:`means`.

    Args:
        version: version of the weights before the update, or None for the version of the newest
            token.
        world: the ranks whose sums :meth:`means` adds up.
    """

    def __init__(self, version: int | None = None, world: World = SOLO) -> None:
        self._world = world
        self.values: dict[str, float] = {}
        """Metrics that are already final."""
        self.before: TokenScores | None = None
        """Scores of the batch's tokens with the weights before the update, on the CPU. NaN for a
        token that was not scored. Complete after :meth:`means`."""
        self.step_loss: Tensor | float = 0.0
        """The loss of the current optimizer step so far."""
        self.num_unscored = 0
        """Number of tokens in episodes without a gradient, over all optimizer steps."""
        self._num_tokens = 0
        self._sums: dict[str, Tensor] = {}
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._scores: list[TokenScores] = []
        self._compared: list[Tensor] = []
        self._version = version
        self._ptx_losses: list[Tensor] = []

    def add(self, terms: Terms, num_tokens: int) -> None:
        """Add the terms of a micro-batch."""
        self._num_tokens += num_tokens
        self.step_loss = terms.loss.detach() + self.step_loss
        for name, value in terms.sums.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value

    def add_imitation(self, terms: Terms, weight: float) -> None:
        """Add the terms of a micro-batch of texts to imitate.

        The metric ``ptx_loss`` is the loss divided by ``weight``.
        """
        self.step_loss = terms.loss.detach() + self.step_loss
        self._ptx_losses.append(terms.loss.detach() / weight)

    def compare(self, scores: TokenScores, tokens: Tensor) -> None:
        """Record scores of n tokens, computed with the weights before the update.

        Args:
            scores: the learner's scores.
            tokens: ``[n]``, on the CPU: the tokens' indices in the batch.
        """
        self._scores.append(TokenScores(scores.logprobs.detach(), scores.entropy.detach()))
        self._compared.append(tokens)

    def end_step(self, loss: float, grad_norm: float) -> None:
        """Record the end of an optimizer step."""
        self._losses.append(loss)
        self._norms.append(grad_norm)
        self.step_loss = 0.0

    def means(self, batch: Batch) -> dict[str, float]:
        """All metrics of the update of ``batch``."""
        result = dict(self.values)
        if self._losses:
            result["loss"] = sum(self._losses) / len(self._losses)
            result["grad_norm"] = sum(self._norms) / len(self._norms)
            result["optimizer_steps"] = float(len(self._losses))
            result["unscored_tokens"] = float(self.num_unscored)
        parts = self._world.gather(self._read())
        ptx_losses = [loss for part in parts for loss in part.ptx_losses]
        if ptx_losses:
            result["ptx_loss"] = sum(ptx_losses) / len(self._losses)
        compared = [part.compared for part in parts if part.compared is not None]
        if compared:
            tokens = torch.cat([tokens for tokens, _ in compared])
            columns = zip(*((x.logprobs, x.entropy) for _, x in compared), strict=True)
            scores = TokenScores(*map(torch.cat, columns))
            result |= self._mismatch(batch, scores.logprobs, tokens)
            if self.before is None:
                self.before = _spread(scores, tokens, batch.num_tokens)
        num_tokens = sum(part.num_tokens for part in parts)
        for name in dict.fromkeys(name for part in parts for name in part.sums):
            result[name] = sum(part.sums.get(name, 0.0) for part in parts) / num_tokens
        return result

    def _read(self) -> _Numbers:
        """This rank's numbers, on the host."""
        scored = [s.logprobs for s in self._scores], [s.entropy for s in self._scores]
        found = iter(read([*self._ptx_losses, *scored[0], *scored[1], *self._sums.values()]))
        ptx_losses = [next(found).item() for _ in self._ptx_losses]
        compared = None
        if self._scores:
            scores = TokenScores(*(_joined(column, found) for column in scored))
            compared = torch.cat(self._compared), scores
        sums = {name: next(found).item() for name in self._sums}
        return _Numbers(self._num_tokens, sums, ptx_losses, compared)

    def _mismatch(self, batch: Batch, logprobs: Tensor, tokens: Tensor) -> dict[str, float]:
        """Metrics of the mismatch, over those compared tokens that the policy sampled."""
        sampled = batch.sampled[tokens]
        own = tokens[sampled]
        versions = batch.versions[own]
        newest = versions.max() if self._version is None else self._version
        log_ratios = logprobs[sampled] - batch.sampling_logprobs[own].to(logprobs.dtype)
        return mismatch(log_ratios, newest - versions)


class _Numbers(NamedTuple):
    """What one rank computed of an update's metrics."""

    num_tokens: int
    sums: dict[str, float]
    ptx_losses: list[float]
    compared: tuple[Tensor, TokenScores] | None
    """The compared tokens' indices in the batch and their scores, or None if none was compared."""


@torch.no_grad()
def compare_few(model: ScoringModel, batch: Batch, metrics: UpdateMetrics, max_tokens: int) -> None:
    """Compare a few evenly spaced episodes of an update with their sampler.

    This comparison detects a sampler with stale weights even if the update has no gradient.

    Args:
        model: the model with the weights before the update.
        batch: the update's episodes.
        metrics: the metrics to add to.
        max_tokens: maximum tokens of one forward pass, padding included.
    """
    present = batch.episode_ids.unique()
    positions = torch.linspace(0, len(present) - 1, min(COMPARED_EPISODES, len(present)))
    few = torch.zeros(len(batch.rewards), dtype=torch.bool)
    few[present[positions.round().long()]] = True
    share = model.shared(model.micro_batches(batch, max_tokens, few))
    computed = uploaded([micro for micro, _ in share], model.device)
    for micro, (_, counts) in zip(computed, share, strict=True):
        scores = model.score(micro)
        if counts:
            metrics.compare(scores, micro.tokens)


def token_record(
    groups: Sequence[TrajectoryGroup], batch: Batch, advantages: Tensor, before: TokenScores | None
) -> TokenRecord:
    """The record of an update; see :class:`rl.learner.seam.TokenRecord`.

    Args:
        groups: the episodes of the update.
        batch: the batch of these episodes.
        advantages: ``[N]``, on the CPU.
        before: scores of the batch's tokens, or None if none was scored.
    """
    places, total = _places(groups, batch)
    nothing = torch.full_like(advantages, math.nan)
    scores = TokenScores(nothing, nothing) if before is None else before
    columns = []
    for numbers in (advantages, scores.logprobs, scores.entropy):
        columns.append(np.full(total, np.nan, dtype=np.float32))
        columns[-1][places] = numbers.numpy()
    return TokenRecord(*columns)


def _places(groups: Sequence[TrajectoryGroup], batch: Batch) -> tuple[NDArray[np.int64], int]:
    """The index of each token of ``batch`` among all tokens of ``groups``, and their number."""
    num_tokens = batch.episode_ids.bincount(minlength=len(batch.rewards)).tolist()
    episodes, rows, end = iter(num_tokens), [], 0
    for trajectory in (t for group in groups for t in group.trajectories):
        starts = list(accumulate(map(len, trajectory.segments), initial=end))
        end = starts[-1]
        for role in trajectory.roles if trajectory.failure is None else ():
            if next(episodes):
                own = [s.role == role and np.any(s.loss_mask) for s in trajectory.segments]
                rows += [start for start, trained in zip(starts, own, strict=False) if trained]
    first = np.repeat(np.asarray(rows, dtype=np.int64), np.diff(batch.row_starts))
    return first + batch.source + 1, end


def _joined(parts: Sequence[Tensor], found: Iterator[Tensor]) -> Tensor:
    """The copies of ``parts`` on the host, which are next in ``found``, with their own type."""
    return torch.cat([next(found).to(part.dtype) for part in parts])


def _spread(scores: TokenScores, tokens: Tensor, num_tokens: int) -> TokenScores:
    """Scores of ``num_tokens`` tokens, which are ``scores`` at ``tokens`` and NaN elsewhere."""
    columns = []
    for own in (scores.logprobs, scores.entropy):
        columns.append(own.new_full((num_tokens,), math.nan))
        columns[-1][tokens] = own
    return TokenScores(*columns)


def mismatch(log_ratios: Tensor, ages: Tensor) -> dict[str, float]:
    """Metrics of the mismatch between the learner's and the sampler's probabilities of tokens.

    Probabilities differ if kernels differ, if weights differ (stale tokens, an update that did not
    arrive), or if the sampler reports the log-probabilities of a distribution from which it does
    not sample. r is the learner's probability divided by the sampler's probability. For tokens
    drawn from the sampler, the divergence KL(sampler || learner) is the mean of k1 = -log r, and
    also of k3 = r - 1 - log r, which is never negative (Schulman, "Approximating KL divergence",
    2020).

    Args:
        log_ratios: ``[n]``, the learner's log-probability minus the sampler's; on the CPU.
        ages: ``[n]``, number of versions by which the sampling weights were older.
    """
    logs = log_ratios.double()
    ratios = logs.exp()
    metrics = {
        "sampling/logp_difference_mean": logs.abs().mean().item(),
        "sampling/logp_difference_max": logs.abs().max().item(),
        "sampling/k1": -logs.mean().item(),
        "sampling/k3": (logs.expm1() - logs).mean().item(),
        "sampling/ratio_outside": ((ratios < NEAR[0]) | (ratios > NEAR[1])).double().mean().item(),
        "sampling/effective_share": effective_share(logs),
    }
    if not ages.any():
        return metrics
    for age in ages.unique().tolist():
        own = logs[ages == age]
        metrics[f"staleness/share/{age}"] = len(own) / len(logs)
        metrics[f"staleness/ratio_mean/{age}"] = own.exp().mean().item()
        metrics[f"staleness/effective_share/{age}"] = effective_share(own)
    return metrics


def effective_share(log_ratios: Tensor) -> float:
    """The effective sample size of weighted tokens, as a share of their number ``n``.

    ``(sum w)^2 / (n sum w^2)`` (Kish 1965, Survey Sampling, section 11.7), which is 1 if all ratios
    ``w`` are equal.
    """
    first, second = log_ratios.logsumexp(0), (2 * log_ratios).logsumexp(0)
    return torch.exp(2 * first - second).item() / len(log_ratios) if len(log_ratios) else math.nan
