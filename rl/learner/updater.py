"""The updater: from groups of episodes to new weights, one update at a time.

:meth:`Updater.update` reads from top to bottom: a batch; what stays fixed during the update (old
and reference log-probabilities, values, advantages); then optimizer steps, each over one minibatch
and summed over its micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl.credit.algorithm import Algorithm
from rl.credit.assignment import fixed_terms
from rl.credit.batch import Batch, MicroBatch
from rl.credit.losses import (
    FixedTerms,
    adapted_kl_coef,
    imitation_objective,
    policy_objective,
    token_weights,
)
from rl.credit.options import Aggregation
from rl.learner.metrics import UpdateMetrics, compare_few
from rl.learner.optimizer import Optimizer
from rl.learner.scoring import ScoringModel, copied, make_reference
from rl.learner.seam import BrokenWeights, NonFiniteLoss
from rl.learner.settings import OptimizerConfig
from rl.learner.token_rewards import TokenRewards
from rl.rollout.trajectory import Segment, TrajectoryGroup

ZERO_ADVANTAGE = 1e-6
"""An advantage up to this is the rounding of a 0."""


class Updater:
    """Trains ``model`` in place.

    Args:
        model: the very object that the local policy samples from.
        algorithm: the row of choices; ``rl.credit.algorithms.ALGORITHMS`` has some.
        optimizer: how weights change.
        temperature: that episodes are sampled at.
        max_tokens_per_micro_batch: most tokens, padding counted, in one forward pass; bounds
            memory and changes nothing else.
        seed: of the order of episodes where an update has several minibatches.

    Raises:
        ValueError: a number is outside its range, or the learner cannot score this kind of model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        algorithm: Algorithm,
        optimizer: OptimizerConfig,
        *,
        temperature: float = 1.0,
        max_tokens_per_micro_batch: int = 4096,
        seed: int = 0,
    ) -> None:
        if max_tokens_per_micro_batch < 1:
            raise ValueError(
                f"max_tokens_per_micro_batch ({max_tokens_per_micro_batch}) must be >= 1"
            )
        self.algorithm = algorithm
        """The row in force: with ``kl.target`` its ``kl.coef`` changes after each update."""
        self.max_tokens_per_micro_batch = max_tokens_per_micro_batch
        self.num_updates = 0
        self.num_skipped_updates = 0
        """Updates without a single token to train."""
        self.credit: tuple[Tensor, Tensor] | None = None
        """Of each token of the last update: its row of the batch's episodes, its advantage."""
        own = algorithm.value.critic == "model"
        self.model = ScoringModel(model, temperature, own, with_values=algorithm.uses_values)
        self.reference = make_reference(model, algorithm, temperature)
        """The model as it was at the start, or at the last refresh; kept only where the algorithm
        refers to it."""
        self.token_rewards: TokenRewards | None = None
        """What says how much single tokens are worth, where the algorithm asks."""
        if algorithm.token_rewards.kind != "none":
            self.token_rewards = TokenRewards(
                model, algorithm, optimizer, temperature, max_tokens_per_micro_batch
            )
        trained, critic = self.model.parameters(), self.model.critic_parameters()
        self.optimizer = Optimizer(trained, optimizer, critic)
        self._generator = torch.Generator().manual_seed(seed)

    def update(
        self,
        groups: Sequence[TrajectoryGroup],
        rewards: Sequence[float] | None = None,
        texts: Sequence[Segment] = (),
        outcomes: Sequence[float] | None = None,
        version: int | None = None,
    ) -> dict[str, float]:
        """Train on the finished episodes of ``groups``, wholly or not at all.

        An update of several optimizer steps keeps a copy of the weights and of the optimizer's
        state in the host's memory; where a later step fails, the earlier ones are undone.

        Args:
            groups: the episodes of one update.
            rewards: shaped returns, one for each finished episode in order; None: their own.
            outcomes: how right each finished episode was, 0 to 1; needed with ``uses_outcomes``.
            texts: what is imitated beside (``ptx_coef``); each optimizer step takes an equal share.
            version: of the weights at its start, for the ages of tokens; None: the newest token's.

        Returns:
            The update's metrics. Without any sampled token nothing is trained, which is counted.

        Raises:
            NonFiniteLoss: before the weights would have been spoilt.
            BrokenWeights: they were, by the update's only step.
            ValueError: ``rewards`` or ``outcomes`` has another length than there are finished
                episodes, or outcomes are missing.
        """
        if self.algorithm.uses_outcomes and outcomes is None:
            raise ValueError("outcomes are missing: give one from 0 to 1 for each finished episode")
        batch = Batch.from_groups(
            groups,
            rewards,
            outcomes,
            mask_observations=self.algorithm.mask_observations,
            mask_truncated=self.algorithm.mask_truncated,
        )
        metrics, self.credit = UpdateMetrics(version), None
        if batch.num_tokens == 0:
            return self._skip(batch, metrics)
        before = None if self.algorithm.one_step else self.optimizer.snapshot()
        order = self._generator.get_state()
        try:
            self._train(batch, metrics, texts)
        except BaseException:
            self.optimizer.zero_grad()
            if self.token_rewards is not None:
                self.token_rewards.drop_gradient()
            self._generator.set_state(order)
            if before is not None:
                self.optimizer.restore(before)
            raise
        return self._finish(batch, metrics)

    def tell(self, scored: Callable[[], None]) -> None:
        """Have ``scored`` called as each micro-batch begins, in the thread that learns."""
        for model in (self.model, self.reference):
            if model is not None:
                model.on_score = scored

    def _train(self, batch: Batch, metrics: UpdateMetrics, texts: Sequence[Segment]) -> None:
        """The optimizer steps of an update."""
        if self.algorithm.forget_optimizer:
            self.optimizer.forget()
        token_scores = None
        if self.token_rewards is not None:
            token_scores = self.token_rewards.scores(batch)
            metrics.values.update(self.token_rewards.accumulate(batch, token_scores))
        fixed, measured = self._fixed_terms(batch, token_scores)
        metrics.values.update(measured)
        sampling_logprobs = self._on_device(batch.sampling_logprobs)
        tables = batch.sampled, batch.versions, batch.episode_ids
        sampled, versions, owners = (table.to(self.model.device) for table in tables)
        self.credit = batch.episode_ids, fixed.advantages.cpu()
        zero = fixed.advantages.abs() <= ZERO_ADVANTAGE
        metrics.values["frac_zero_advantage"] = zero.double().mean().item()
        live = self._live_episodes(batch, fixed.advantages)
        if not live.any():
            compare_few(self.model, batch, metrics, self.max_tokens_per_micro_batch)
        steps_before = self.optimizer.num_steps
        minibatches = list(self._minibatches(batch))
        for number, episodes in enumerate(minibatches):
            weights, num_tokens = self._weights(batch, episodes, self.algorithm.aggregation)
            trained = episodes & live
            metrics.num_unscored += int((episodes & ~live)[batch.episode_ids].sum())
            for micro in self._micro_batches(batch, trained):
                scores = self.model.score(micro)
                terms = policy_objective(
                    self.algorithm,
                    scores,
                    fixed.at(micro.tokens),
                    weights[micro.tokens],
                    value_weight=1 / num_tokens,
                    rows=owners[micro.tokens],
                )
                terms.loss.backward()
                if self.optimizer.num_steps == steps_before:
                    mine = sampled[micro.tokens]
                    own = micro.tokens[mine]
                    metrics.compare(scores.logprobs[mine], sampling_logprobs[own], versions[own])
                metrics.add(terms, micro.num_tokens)
            if not trained.any():
                self.optimizer.add_zero_gradient()
            self._imitate(texts[number :: len(minibatches)], metrics)
            self._step(metrics)
        if self.token_rewards is not None:
            self.token_rewards.step()

    def _fixed_terms(
        self, batch: Batch, token_scores: Tensor | None
    ) -> tuple[FixedTerms, dict[str, float]]:
        """What stays fixed while the update lasts, on the model's device, and its metrics."""
        row, most = self.algorithm, self.max_tokens_per_micro_batch
        old, values, ref = None, None, None
        if row.uses_old_scores:
            old, values = self.model.score_batch(batch, most)
        if self.reference is not None:
            ref, _ = self.reference.score_batch(batch, most)
        fixed, metrics = fixed_terms(row, batch, values, old, ref, token_scores)
        return fixed.to(self.model.device, self.model.dtype), metrics

    def _imitate(self, texts: Sequence[Segment], metrics: UpdateMetrics) -> None:
        """Add the gradient of the texts' mean cross-entropy, by ``ptx_coef``."""
        if not texts or not self.algorithm.ptx_coef:
            return
        batch = Batch.from_segments(texts)
        everyone = torch.ones(len(batch.rewards), dtype=torch.bool)
        weights, _ = self._weights(batch, everyone, "token-mean")
        for micro in self._micro_batches(batch, everyone):
            terms = imitation_objective(
                self.model.score(micro), self.algorithm.ptx_coef * weights[micro.tokens]
            )
            terms.loss.backward()
            metrics.add_imitation(terms, self.algorithm.ptx_coef)

    def supervised_update(self, segments: Sequence[Segment]) -> dict[str, float]:
        """Train to say the tokens with loss_mask 1: one optimizer step on their mean cross-entropy.

        Args:
            segments: texts to imitate; only ``token_ids`` and ``loss_mask`` matter.

        Returns:
            The update's metrics. Without any trained token nothing is trained, which is counted.

        Raises:
            NonFiniteLoss: before the weights would have been spoilt.
            BrokenWeights: they were.
            ValueError: a trained token has nothing before it.
        """
        batch = Batch.from_segments(segments)
        metrics = UpdateMetrics()
        if batch.num_tokens == 0:
            return self._skip(batch, metrics)
        everyone = torch.ones(len(batch.rewards), dtype=torch.bool)
        weights, _ = self._weights(batch, everyone, "token-mean")
        for micro in self._micro_batches(batch, everyone):
            terms = imitation_objective(self.model.score(micro), weights[micro.tokens])
            terms.loss.backward()
            metrics.add(terms, micro.num_tokens)
        self._step(metrics)
        return self._finish(batch, metrics)

    def state_dict(self) -> dict[str, Any]:
        """All that a resumed run needs beside the model's own weights, to go on bit for bit."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "generator": self._generator.get_state(),
            "kl_coef": self.algorithm.kl.coef,
            "num_updates": self.num_updates,
            "num_skipped_updates": self.num_skipped_updates,
            **{name: p if p is None else p.state_dict() for name, p in self._parts().items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The inverse of :meth:`state_dict`, for a learner of the same model and algorithm.

        Raises:
            ValueError: the state is of an algorithm with other parts.
        """
        for name, part in self._parts().items():
            if (part is None) != ((saved := state.get(name)) is None):
                raise ValueError(
                    f"the saved learner has {'no ' if saved is None else 'a '}{name}, this one "
                    f"differs: resume with the algorithm that the run was started with"
                )
            if part is not None:
                part.load_state_dict(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])
        self.algorithm = self.algorithm.changed({"kl.coef": state["kl_coef"]})
        self.num_updates = state["num_updates"]
        self.num_skipped_updates = state["num_skipped_updates"]

    def _parts(self) -> dict[str, Any]:
        """What has a state beside the model's; None where the algorithm has no such part."""
        parts = {"value_head": self.model.value_head, "value_trunk": self.model.value_trunk}
        return {**parts, "reference": copied(self.reference), "token_rewards": self.token_rewards}

    def _minibatches(self, batch: Batch) -> Iterator[Tensor]:
        """The episodes of each optimizer step: ``[M]`` booleans."""
        present = batch.episode_ids.unique()
        parts = min(self.algorithm.minibatches, len(present))
        for _ in range(self.algorithm.epochs):
            if parts > 1:
                present = present[torch.randperm(len(present), generator=self._generator)]
            for part in present.tensor_split(parts):
                episodes = torch.zeros(len(batch.rewards), dtype=torch.bool)
                episodes[part] = True
                yield episodes

    def _weights(
        self, batch: Batch, episodes: Tensor, aggregation: Aggregation
    ) -> tuple[Tensor, int]:
        """Each token's weight in the step of these episodes (``[N]``), and the step's tokens."""
        chosen = episodes[batch.episode_ids]
        ids = batch.episode_ids[chosen]
        if aggregation == "prompt-mean":
            ids = batch.group_ids[ids]
        elif aggregation == "outcome-mean":
            ids = (batch.outcomes[ids] > 0.5).long()
        weights = torch.zeros(batch.num_tokens, dtype=torch.float64)
        weights[chosen] = token_weights(ids, aggregation, self.algorithm.max_tokens)
        return self._on_device(weights), int(chosen.sum())

    def _live_episodes(self, batch: Batch, advantages: Tensor) -> Tensor:
        """Episodes with a gradient: ``[M]`` booleans.

        Only metrics need the forward pass of the others, which are left out, but for a few episodes
        of an update in which none has a gradient.
        """
        live = torch.full((len(batch.rewards),), self.algorithm.gradient_at_zero)
        live[batch.episode_ids[advantages.cpu() != 0]] = True
        return live

    def _micro_batches(self, batch: Batch, episodes: Tensor) -> Iterator[MicroBatch]:
        """The micro-batches of these episodes, on the model's device."""
        for micro in batch.micro_batches(
            self.max_tokens_per_micro_batch, episodes, whole=self.algorithm.uses_sequences
        ):
            yield micro.to(self.model.device)

    def _step(self, metrics: UpdateMetrics) -> None:
        grad_norm = self.optimizer.clip_gradients().item()
        loss = metrics.step_loss.item()
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            self.optimizer.zero_grad()
            raise NonFiniteLoss(
                f"optimizer step {self.optimizer.num_steps + 1} has loss {loss} and gradient norm "
                f"{grad_norm}: the weights are still those that the update began with"
            )
        metrics.values["learning_rate"] = self.optimizer.learning_rate
        self.optimizer.step()
        if not self.optimizer.weights_are_finite():
            raise BrokenWeights(
                f"optimizer step {self.optimizer.num_steps} gave weights that are not finite, from "
                f"loss {loss} and gradient norm {grad_norm}: lower optimizer.lr"
            )
        metrics.end_step(loss, grad_norm)

    def _skip(self, batch: Batch, metrics: UpdateMetrics) -> dict[str, float]:
        self.num_skipped_updates += 1
        return self._finish(batch, metrics)

    def _finish(self, batch: Batch, metrics: UpdateMetrics) -> dict[str, float]:
        self.num_updates += batch.num_tokens > 0
        counts = {
            "num_tokens": float(batch.num_tokens),
            "failed_episodes": float(batch.num_failed),
            "empty_episodes": float(batch.num_empty),
            "masked_episodes": float(batch.num_masked),
            "skipped_updates": float(self.num_skipped_updates),
        }
        means = metrics.means()
        if "kl" in means:
            means["kl_coef"] = self.algorithm.kl.coef
            self._adapt(means["kl"], batch)
        every = self.algorithm.kl.ref_every
        if self.reference is not None and every and self.num_updates % every == 0:
            self.reference.model.load_state_dict(self.model.model.state_dict())
        return {**means, **counts}

    def _adapt(self, kl: float, batch: Batch) -> None:
        """Move the weight of the divergence, ``kl`` nats per token, towards its target."""
        target = self.algorithm.kl.target
        if target is not None:
            episodes = len(batch.rewards)
            coef = adapted_kl_coef(
                self.algorithm.kl.coef,
                kl * batch.num_tokens / episodes,
                target,
                episodes,
                self.algorithm.kl.horizon,
            )
            self.algorithm = self.algorithm.changed({"kl.coef": coef})

    def _on_device(self, x: Tensor) -> Tensor:
        return x.to(device=self.model.device, dtype=self.model.dtype)
