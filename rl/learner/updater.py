"""The updater: from groups of episodes to new weights.

:meth:`Updater.update` has three stages. It makes the batch. It computes the terms that stay
constant during the update (old and reference log-probabilities, values, advantages). It makes the
optimizer steps, each over one minibatch, and sums a step over its micro-batches.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any, Self

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rl.credit.algorithm import Algorithm
from rl.credit.assignment import fixed_terms
from rl.credit.batch import Batch, MicroBatch
from rl.credit.losses import FixedTerms, TokenScores, adapted_to_kl
from rl.credit.steps import Portion, imitation_portions, minibatches, policy_portions
from rl.learner.memory.host import WaitingWeights
from rl.learner.memory.transfers import read, uploaded
from rl.learner.metrics import UpdateMetrics, compare_few, token_record
from rl.learner.optimizer import Optimizer
from rl.learner.ranks.world import SOLO, World
from rl.learner.scoring import ScoringModel, copied, make_reference, shard
from rl.learner.seam import BrokenWeights, NonFiniteLoss, TokenRecord
from rl.learner.settings import DEFAULT_MEMORY, MemoryConfig, OptimizerConfig
from rl.learner.token_rewards import TokenRewards
from rl.rollout.trajectory import Segment, TrajectoryGroup

ZERO_ADVANTAGE = 1e-6
"""Largest magnitude of an advantage that counts as 0."""


class Updater:
    """Trains ``model`` in place.

    Args:
        model: the object that the local policy samples from.
        algorithm: the algorithm's settings, such as a row of ``rl.credit.algorithms.ALGORITHMS``.
        optimizer: the optimizer's settings.
        temperature: sampling temperature of the episodes.
        max_tokens_per_micro_batch: maximum tokens of one forward pass, padding included. Results do
            not depend on it.
        packing: whether rows are packed instead of padded, if the model can compute packed rows.
        memory: what is kept in memory. Results do not depend on it.
        world: the ranks that compute each update together.

    Raises:
        ValueError: a number is out of range, or the learner cannot score this kind of model.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        algorithm: Algorithm,
        optimizer: OptimizerConfig,
        *,
        temperature: float = 1.0,
        max_tokens_per_micro_batch: int = 4096,
        packing: bool = True,
        memory: MemoryConfig = DEFAULT_MEMORY,
        world: World = SOLO,
    ) -> None:
        if max_tokens_per_micro_batch < 1:
            raise ValueError(
                f"max_tokens_per_micro_batch ({max_tokens_per_micro_batch}) must be >= 1"
            )
        self.algorithm = algorithm
        """The current settings. With ``kl.target``, ``kl.coef`` changes after each update."""
        self.max_tokens_per_micro_batch = max_tokens_per_micro_batch
        self.world = world
        self.memory: dict[str, float] = {}
        """Numbers that the advantage keeps from update to update."""
        self.num_updates = 0
        self.num_skipped_updates = 0
        """Number of updates that had no token to train."""
        self.credit: tuple[Tensor, Tensor] | None = None
        """Episode and advantage of each token of the last update, or None if it had no token."""
        self.record: TokenRecord | None = None
        """What the last update computed about each token, or None if it had no token."""
        self._make_models(model, optimizer, temperature, memory, packing)
        trained, critic = self.model.parameters(), self.model.critic_parameters()
        self.optimizer = Optimizer(trained, optimizer, critic, world)
        self._generator = torch.Generator().manual_seed(0)

    def _make_models(
        self,
        model: PreTrainedModel,
        optimizer: OptimizerConfig,
        temperature: float,
        memory: MemoryConfig,
        packing: bool,
    ) -> None:
        """Make the models that score tokens, and divide them among the ranks."""
        algorithm, world = self.algorithm, self.world
        own, values = algorithm.value.critic == "model", algorithm.uses_values
        shared: Any = {"memory": memory, "packing": packing, "world": world}
        self.model = ScoringModel(model, temperature, own, with_values=values, **shared)
        self.reference = make_reference(model, algorithm, temperature, **shared)
        """The initial model, or the model at the last refresh. None if the algorithm has no
        divergence."""
        own_reference = copied(self.reference)
        self.waiting: WaitingWeights | None = None
        """The weights of the reference, if they wait in the host's memory between its scores."""
        if own_reference is not None and memory.offload_scorers:
            self.waiting = WaitingWeights(own_reference)
            self.waiting.offload()
        self.token_rewards: TokenRewards | None = None
        """The token reward model, or None if the algorithm has none."""
        if algorithm.token_rewards.kind != "none":
            limit = self.max_tokens_per_micro_batch
            self.token_rewards = TokenRewards(
                model, algorithm, optimizer, temperature, limit, **shared
            )
        # Last, because the models above are copies of the whole model.
        shard(self.model, self.reference)

    def update(
        self,
        groups: Sequence[TrajectoryGroup],
        ptx_data: Sequence[Segment] = (),
        version: int | None = None,
    ) -> dict[str, float]:
        """Train on the finished episodes of ``groups``, completely or not at all.

        An update of several optimizer steps keeps a copy of the weights and of the optimizer's
        state in the host's memory. If a later step fails, the earlier ones are undone.

        Args:
            groups: the episodes of one update.
            ptx_data: texts to imitate (``ptx_coef``), divided equally among the optimizer steps.
            version: version of the current weights, from which the ages of tokens are computed. If
                None, the version of the newest token.

        Returns:
            The update's metrics. An update without a sampled token trains nothing and is counted.

        Raises:
            NonFiniteLoss: the loss or gradient is not finite; the weights have not changed.
            BrokenWeights: the update's only step made weights that are not finite.
            ValueError: the algorithm needs the outcomes of episodes, and an outcome is missing.
        """
        finished = [trajectory for group in groups for trajectory in group.finished]
        if self.algorithm.uses_outcomes and any(t.outcome is None for t in finished):
            raise ValueError(
                "an outcome is missing: set Trajectory.outcome of each finished episode to a "
                "number from 0 to 1"
            )
        batch = Batch.from_groups(
            groups,
            mask_observations=self.algorithm.mask_observations,
            mask_truncated=self.algorithm.mask_truncated,
        )
        metrics = UpdateMetrics(version, self.world)
        self.credit = self.record = None
        if batch.num_tokens == 0:
            return self._finish(batch, metrics)
        before = None if self.algorithm.one_step else self.optimizer.snapshot()
        order, memory = self._generator.get_state(), dict(self.memory)
        try:
            advantages = self._train(batch, metrics, ptx_data)
        except BaseException:
            self.optimizer.zero_grad()
            if self.token_rewards is not None:
                self.token_rewards.drop_gradient()
            self._generator.set_state(order)
            self.memory = memory
            if before is not None:
                self.optimizer.restore(before)
            raise
        made = self._finish(batch, metrics)
        self.record = token_record(groups, batch, advantages, metrics.before)
        return made

    def seeded(self, seed: int) -> Self:
        """This updater, with a seed of the order of episodes in several minibatches; 0 at first."""
        self._generator.manual_seed(seed)
        return self

    def report_progress(self, on_progress: Callable[[], None]) -> None:
        """Call ``on_progress`` at the start of each micro-batch, in the learner's thread."""
        for model in (self.model, self.reference):
            if model is not None:
                model.on_score = on_progress

    def _train(self, batch: Batch, metrics: UpdateMetrics, ptx_data: Sequence[Segment]) -> Tensor:
        """Make the optimizer steps of an update, and return the advantage of each token."""
        if self.algorithm.forget_optimizer:
            self.optimizer.forget()
        token_scores = None
        if self.token_rewards is not None:
            token_scores = self.token_rewards.scores(batch)
            metrics.values.update(self.token_rewards.accumulate(batch, token_scores))
        metrics.before = self._scores_before(batch)
        fixed, measured = self._fixed_terms(batch, metrics.before, token_scores)
        metrics.values.update(measured)
        self.credit = batch.episode_ids, fixed.advantages
        zero = fixed.advantages.abs() <= ZERO_ADVANTAGE
        metrics.values["frac_zero_advantage"] = zero.double().mean().item()
        has_gradient = self._has_gradient(batch, fixed.advantages)
        if not has_gradient.any():
            compare_few(self.model, batch, metrics, self.max_tokens_per_micro_batch)
        steps, row = [], self.algorithm
        order = list(minibatches(row, batch, self._generator))
        for number, episodes in enumerate(order):
            trained = episodes & has_gradient
            metrics.num_unscored += int((episodes & ~has_gradient)[batch.episode_ids].sum())
            portions = policy_portions(row, batch, fixed, episodes, trained, self._cut)
            texts = ptx_data[number :: len(order)] if row.ptx_coef else ()
            imitated = self._imitation(Batch.from_segments(texts), row.ptx_coef)
            steps.append(self._shared(portions) + self._shared(imitated))
        self._make_steps(steps, metrics)
        if self.token_rewards is not None:
            self.token_rewards.step()
        return fixed.advantages

    def _make_steps(self, steps: Sequence[Sequence[Portion]], metrics: UpdateMetrics) -> None:
        """Make the optimizer steps. The host waits for the device only at the end of each."""
        portions = uploaded([portion for step in steps for portion in step], self.model.device)
        for number, step in enumerate(steps):
            if all(portion.fixed is None for portion in step):
                self.optimizer.add_zero_gradient()
            for portion in islice(portions, len(step)):
                scores = self.model.score(portion.micro)
                terms = portion.terms(self.algorithm, scores)
                self.optimizer.backward(terms.loss)
                if not portion.counts:
                    continue
                if portion.fixed is None:
                    metrics.add_imitation(terms, self.algorithm.ptx_coef)
                else:
                    metrics.add(terms, portion.micro.num_tokens)
                    if number == 0:
                        metrics.compare(scores, portion.micro.tokens)
            self._step(metrics)

    def _scores_before(self, batch: Batch) -> TokenScores | None:
        """Scores with the weights before the update, or None if the algorithm needs none."""
        if not self.algorithm.uses_old_scores:
            return None
        return self.model.score_tokens(batch, self.max_tokens_per_micro_batch)

    def _fixed_terms(
        self, batch: Batch, before: TokenScores | None, token_scores: Tensor | None
    ) -> tuple[FixedTerms, dict[str, float]]:
        """The constant terms of the update, in the type of scores, and their metrics."""
        row, old, values, ref = self.algorithm, None, None, None
        if before is not None:
            old, values = before.logprobs, before.values
        if self.reference is not None:
            ref = self._reference_logprobs(self.reference, batch)
        scores = (values, old, ref, token_scores)
        fixed, metrics = fixed_terms(row, batch, *scores, self.memory)
        return fixed.map(lambda x: x.to(self.model.dtype)), metrics

    def _reference_logprobs(self, reference: ScoringModel, batch: Batch) -> Tensor:
        """The reference's log-probability of each token: ``[N]``."""
        if self.waiting is not None:
            self.waiting.onload()
        try:
            return reference.score_batch(batch, self.max_tokens_per_micro_batch)[0]
        finally:
            if self.waiting is not None:
                self.waiting.offload()

    def _shared(self, portions: Sequence[Portion]) -> list[Portion]:
        """The portions that this rank computes."""
        share = self.world.share(portions, lambda portion: portion.micro.input_ids.numel())
        return [portion if counts else portion.without_weight() for portion, counts in share]

    def _imitation(self, texts: Batch, coef: float = 1.0) -> list[Portion]:
        return imitation_portions(texts, self.model.dtype, self._cut, coef)

    def supervised_update(self, segments: Sequence[Segment]) -> dict[str, float]:
        """Make one optimizer step on the mean cross-entropy of the tokens with loss_mask 1.

        Args:
            segments: texts to imitate. Only ``token_ids`` and ``loss_mask`` are read.

        Returns:
            The update's metrics. An update without such a token trains nothing and is counted.

        Raises:
            NonFiniteLoss: the loss or gradient is not finite; the weights have not changed.
            BrokenWeights: the step made weights that are not finite.
            ValueError: a segment's first token is trained, so no token precedes it.
        """
        batch = Batch.from_segments(segments)
        metrics = UpdateMetrics(world=self.world)
        if batch.num_tokens == 0:
            return self._finish(batch, metrics)
        for portion in uploaded(self._shared(self._imitation(batch)), self.model.device):
            terms = portion.terms(self.algorithm, self.model.score(portion.micro))
            self.optimizer.backward(terms.loss)
            if portion.counts:
                metrics.add(terms, portion.micro.num_tokens)
        self._step(metrics)
        return self._finish(batch, metrics)

    def state_dict(self) -> dict[str, Any]:
        """The state that a run needs, besides the model's weights, to continue exactly."""
        return {
            "optimizer": self.optimizer.state_dict(),
            "generator": self._generator.get_state(),
            "kl_coef": self.algorithm.kl.coef,
            "advantage_memory": dict(self.memory),
            "num_updates": self.num_updates,
            "num_skipped_updates": self.num_skipped_updates,
            **{name: p if p is None else p.state_dict() for name, p in self._parts().items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`, for the same model and algorithm.

        Raises:
            ValueError: the state's algorithm has other parts (value head, reference, token
                rewards).
        """
        for name, part in self._parts().items():
            saved: Any = state.get(name)
            if (part is None) != (saved is None):
                raise ValueError(
                    f"the saved learner has {'no ' if saved is None else 'a '}{name}, this one "
                    f"differs: resume with the algorithm that the run was started with"
                )
            if isinstance(part, nn.Module):
                self.world.load(part, saved)
            elif part is not None:
                part.load_state_dict(saved)
        self.optimizer.load_state_dict(state["optimizer"])
        self._generator.set_state(state["generator"])
        self.algorithm = self.algorithm.changed({"kl.coef": state["kl_coef"]})
        self.memory = dict(state.get("advantage_memory", {}))  # Earlier versions saved none.
        self.num_updates = state["num_updates"]
        self.num_skipped_updates = state["num_skipped_updates"]

    def _parts(self) -> dict[str, Any]:
        """The optional parts of the learner that have a state, by name; None if missing."""
        parts = {"value_head": self.model.value_head, "value_trunk": self.model.value_trunk}
        return {**parts, "reference": copied(self.reference), "token_rewards": self.token_rewards}

    def _has_gradient(self, batch: Batch, advantages: Tensor) -> Tensor:
        """Whether each episode has a gradient: ``[M]`` booleans.

        Episodes without a gradient get no forward pass, because only metrics would need it. If no
        episode has a gradient, a few are scored for the metrics.
        """
        episodes = torch.full((len(batch.rewards),), self.algorithm.gradient_at_zero)
        episodes[batch.episode_ids[advantages != 0]] = True
        return episodes

    def _cut(self, batch: Batch, episodes: Tensor) -> list[MicroBatch]:
        limit, whole = self.max_tokens_per_micro_batch, self.algorithm.uses_sequences
        return self.model.micro_batches(batch, limit, episodes, whole=whole)

    def _step(self, metrics: UpdateMetrics) -> None:
        norm = self.optimizer.clip_gradients()
        loss, grad_norm = (x.item() for x in read([norm.new_zeros(()) + metrics.step_loss, norm]))
        # All ranks judge the same loss, so that none makes a step alone.
        loss = sum(self.world.gather(loss))
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            self.optimizer.zero_grad()
            raise NonFiniteLoss(
                f"optimizer step {self.optimizer.num_steps + 1} has loss {loss} and gradient norm "
                f"{grad_norm}: the weights have not changed"
            )
        metrics.values["learning_rate"] = self.optimizer.learning_rate
        self.optimizer.step()
        if not self.optimizer.weights_are_finite():
            raise BrokenWeights(
                f"optimizer step {self.optimizer.num_steps} gave weights that are not finite, from "
                f"loss {loss} and gradient norm {grad_norm}: lower optimizer.lr"
            )
        metrics.end_step(loss, grad_norm)

    def _finish(self, batch: Batch, metrics: UpdateMetrics) -> dict[str, float]:
        self.num_updates += batch.num_tokens > 0
        self.num_skipped_updates += batch.num_tokens == 0
        counts = {
            "num_tokens": float(batch.num_tokens),
            "failed_episodes": float(batch.num_failed),
            "empty_episodes": float(batch.num_empty),
            "masked_episodes": float(batch.num_masked),
            "skipped_updates": float(self.num_skipped_updates),
        }
        means = metrics.means(batch)
        if "kl" in means:
            means["kl_coef"] = self.algorithm.kl.coef
            sizes = batch.num_tokens, len(batch.rewards) - batch.num_masked
            self.algorithm = adapted_to_kl(self.algorithm, means["kl"], *sizes)
        every = self.algorithm.kl.ref_every
        if self.reference is not None and every and self.num_updates % every == 0:
            self.reference.model.load_state_dict(self.model.model.state_dict())
        return {**means, **counts}
