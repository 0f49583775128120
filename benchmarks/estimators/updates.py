"""Gradients of turnwise's estimators on the worlds of :mod:`benchmarks.estimators.tabular`.

This module implements no estimator: episodes become a :class:`~rl.credit.batch.Batch`, which goes
through the same steps as in ``Updater``, with the table's log-probabilities instead of a model's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from benchmarks.estimators.tabular import Group, Setting, World, all_groups
from rl.credit.algorithm import Algorithm
from rl.credit.assignment import fixed_terms
from rl.credit.batch import Batch
from rl.credit.losses import FixedTerms, TokenScores, policy_objective, token_weights
from rl.rollout.trajectory import Trajectory, TrajectoryGroup


class Trials:
    """Values by trial, as ``rl.rollout.vine`` records them.

    The value of a turn is the mean return of continuations from its state. The first state of a
    group is valued once.

    Args:
        setting: whose sampler plays on.
        rollouts: continuations from each state.
        generator: of what they sample.
    """

    def __init__(self, setting: Setting, rollouts: int, generator: np.random.Generator) -> None:
        self._setting, self._rollouts, self._generator = setting, rollouts, generator
        self._outcomes: dict[str, tuple[Tensor, Tensor]] = {}

    def value(self, state: str) -> float:
        """The mean return of continuations that are played now."""
        if state not in self._outcomes:
            onward = World(self._setting.world.states, [state])
            self._outcomes[state] = onward.returns, onward.logprobs(self._setting.sampler).exp()
        returns, probabilities = self._outcomes[state]
        played = self._generator.choice(returns, self._rollouts, p=probabilities)
        return float(played.mean())

    def trajectories(self, group: Group) -> list[Trajectory]:
        """A group's trajectories, each turn with its value."""
        episodes = self._setting.world.episodes
        first = self.value(episodes[group[0]].turns[0][0])
        valued = []
        for number in group:
            later = [self.value(state) for state, _, _ in episodes[number].turns[1:]]
            recorded = self._setting.trajectory(number)
            turns = zip(recorded.turns, [first, *later], strict=True)
            valued.append(replace(recorded, turns=[replace(t, value=v) for t, v in turns]))
        return valued


@dataclass(frozen=True, slots=True)
class Updates:
    """Episodes of one or several updates, as tensors that every algorithm can use."""

    setting: Setting
    batch: Batch
    contexts: Tensor
    """``[N]``, where each token was sampled."""
    owners: Tensor
    """``[N]``, the update of each token."""
    count: int

    @classmethod
    def of(
        cls,
        setting: Setting,
        updates: Sequence[Sequence[Group]],
        record: Callable[[Group], list[Trajectory]] | None = None,
    ) -> Updates:
        """The batch of some updates, each of some groups.

        Args:
            setting: where.
            updates: the groups of each.
            record: what makes a group's trajectories, where they hold more than the episodes.
        """
        record = record or setting.trajectories
        episodes = setting.world.episodes
        groups = [group for update in updates for group in update]
        numbers = [number for group in groups for number in group]
        made = [TrajectoryGroup(record(group)) for group in groups]
        finished = [trajectory for group in made for trajectory in group.finished]
        for number, trajectory in zip(numbers, finished, strict=True):
            trajectory.outcome = float(episodes[number].reward > 0.5)
        batch = Batch.from_groups(made)
        assert batch.targets.tolist() == [x for i in numbers for x in episodes[i].letters]
        of_episode = [u for u, update in enumerate(updates) for group in update for _ in group]
        contexts = torch.tensor([c for i in numbers for c in episodes[i].contexts])
        owners = torch.tensor(of_episode)[batch.episode_ids]
        return cls(setting, batch, contexts, owners, len(updates))

    def look_up(self, logits: Tensor) -> Tensor:
        """Log-probabilities of the tokens, ``[N]``."""
        return logits.log_softmax(-1)[self.contexts, torch.from_numpy(self.batch.targets)]

    def weights(self, algorithm: Algorithm) -> Tensor:
        """Weight of each token in its update, ``[N]``, for the sequences that ``Updater`` has."""
        ids = self.batch.episode_ids
        if algorithm.aggregation == "prompt-mean":
            ids = self.batch.group_ids[ids]
        elif algorithm.aggregation == "outcome-mean":
            ids = (self.batch.outcomes[ids] > 0.5).long()
        parts = ids.split(self.owners.bincount().tolist())
        return torch.cat(
            [token_weights(part, algorithm.aggregation, algorithm.max_tokens) for part in parts]
        )

    def fixed_terms(self, algorithm: Algorithm, values: Tensor | None) -> FixedTerms:
        """The terms that stay constant during the updates."""
        setting, batch = self.setting, self.batch
        old, ref, valued, scores = self.look_up(setting.logits), None, None, None
        if algorithm.kl.coef:
            assert setting.reference is not None
            ref = self.look_up(setting.reference)
        if algorithm.uses_values:
            valued = (setting.values if values is None else values)[self.contexts]
        if algorithm.token_rewards.kind != "none":
            assert setting.scores is not None
            scores = setting.scores[self.contexts, torch.from_numpy(batch.targets)]
        return fixed_terms(algorithm, batch, valued, old, ref, scores)[0]


def looks_at_all(algorithm: Algorithm) -> bool:
    """Whether an advantage depends on more than its own group."""
    return algorithm.whiten or algorithm.advantage.over_batch


def gradients(updates: Updates, algorithm: Algorithm, values: Tensor | None = None) -> Tensor:
    """The direction in which each update moves the logits: minus the gradient of its loss.

    It is the first optimizer step of each update.

    Args:
        updates: the episodes.
        algorithm: the row of choices.
        values: of each context, ``[C]``; None: the exact ones.

    Returns:
        ``[U, C, V]``.

    Raises:
        ValueError: several updates for an algorithm that looks at its whole batch.
    """
    if updates.count > 1 and looks_at_all(algorithm):
        raise ValueError("advantages would be over all updates together: give one at a time")
    world, contexts = updates.setting.world, updates.contexts
    table = updates.setting.logits.log_softmax(-1)
    logprobs = updates.look_up(updates.setting.logits).requires_grad_()
    scores = TokenScores(logprobs, -(table.exp() * table).sum(-1)[contexts])
    fixed, weights = updates.fixed_terms(algorithm, values), updates.weights(algorithm)
    rows = updates.batch.episode_ids
    terms = policy_objective(algorithm, scores, fixed, weights, 0.0, rows)
    (slope,) = torch.autograd.grad(-terms.loss, logprobs)
    # The gradient of a token's log-probability, at its context: one-hot minus probabilities.
    moved = -slope[:, None] * table.exp()[contexts]
    moved[torch.arange(len(slope)), torch.from_numpy(updates.batch.targets)] += slope
    shape = (updates.count * world.num_contexts, world.num_letters)
    total = torch.zeros(shape, dtype=torch.float64)
    total.index_add_(0, updates.owners * world.num_contexts + contexts, moved)
    return total.view(updates.count, world.num_contexts, world.num_letters)


def expected_gradient(
    setting: Setting, algorithm: Algorithm, size: int, values: Tensor | None = None
) -> Tensor:
    """The exact mean of :func:`gradients` over updates of one group of ``size``. ``[C, V]``."""
    groups, weights = all_groups(setting, size)
    blocks = [[g] for g in groups] if looks_at_all(algorithm) else [groups]
    parts = torch.cat(
        [gradients(Updates.of(setting, [[g] for g in b]), algorithm, values) for b in blocks]
    )
    return torch.einsum("g,gcv->cv", weights, parts)
