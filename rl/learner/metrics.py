"""Metrics of one update, summed on the device and read once."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl.credit.batch import Batch
from rl.credit.losses import Terms
from rl.learner.memory.transfers import read, uploaded
from rl.learner.scoring import ScoringModel

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
    """

    def __init__(self, version: int | None = None) -> None:
        self.values: dict[str, float] = {}
        """Metrics that are already final."""
        self.step_loss: Tensor | float = 0.0
        """The loss of the current optimizer step so far."""
        self.num_unscored = 0
        """Number of tokens in episodes without a gradient, over all optimizer steps."""
        self._num_tokens = 0
        self._sums: dict[str, Tensor] = {}
        self._losses: list[float] = []
        self._norms: list[float] = []
        self._logprobs: list[Tensor] = []
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

    def compare(self, logprobs: Tensor, tokens: Tensor) -> None:
        """Record the learner's log-probabilities, computed with the weights before the update.

        Args:
            logprobs: ``[n]``.
            tokens: ``[n]``, on the CPU: the tokens' indices in the batch.
        """
        self._logprobs.append(logprobs.detach())
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
        found = iter(read([*self._ptx_losses, *self._logprobs, *self._sums.values()]))
        if self._ptx_losses:
            total = sum(next(found).item() for _ in self._ptx_losses)
            result["ptx_loss"] = total / len(self._losses)
        if self._logprobs:
            logprobs = torch.cat([next(found).to(own.dtype) for own in self._logprobs])
            result |= self._mismatch(batch, logprobs)
        result.update((name, next(found).item() / self._num_tokens) for name in self._sums)
        return result

    def _mismatch(self, batch: Batch, logprobs: Tensor) -> dict[str, float]:
        """Metrics of the mismatch, over those compared tokens that the policy sampled."""
        tokens = torch.cat(self._compared)
        sampled = batch.sampled[tokens]
        own = tokens[sampled]
        versions = batch.versions[own]
        newest = versions.max() if self._version is None else self._version
        log_ratios = logprobs[sampled] - batch.sampling_logprobs[own].to(logprobs.dtype)
        return mismatch(log_ratios, newest - versions)


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
    for micro in uploaded(model.micro_batches(batch, max_tokens, few), model.device):
        metrics.compare(model.score(micro).logprobs, micro.tokens)


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
