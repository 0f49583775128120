"""Worlds so small that everything about them can be computed, and our estimators' gradients there.

A :class:`World` names its states and says where each action leads. An action is a string of tokens
(letters); the actions of a state are the leaves of a tree in which every inner node has all
letters, so that a turn may have one token or several. A *context* is a node of such a tree: what
the policy has read when it samples a token. The policy is a table of logits, one row for each
context. All episodes can be listed, and values and the policy gradient follow by recursion.

:func:`gradients` has no estimator of its own: it makes a :class:`~rl.learner.batch.Batch` of
:class:`~rl.rollout.trajectory.Trajectory` and takes the same steps as ``Learner``, with the table's
log-probabilities in the place of a model's.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from agents.completion import Completion, FinishReason
from rl.credit.algorithm import Algorithm
from rl.credit.corrections import correction_weights
from rl.credit.losses import token_weights
from rl.credit.objective import FixedTerms, TokenScores, policy_objective
from rl.learner.batch import Batch
from rl.learner.credit import assign_credit
from rl.rollout.trajectory import Segment, Trajectory, TrajectoryGroup, Turn

Actions = Mapping[str, tuple[str | None, float]]
"""Where each action of a state leads (None: the episode ends) and what it earns."""
Group = tuple[int, ...]
"""The numbers of a group's episodes."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One of the ways through a world."""

    task: int
    turns: tuple[tuple[str, str, float], ...]
    """State, action and reward of each."""
    contexts: tuple[int, ...]
    """Of each sampled token."""
    letters: tuple[int, ...]
    """The sampled tokens."""

    @property
    def reward(self) -> float:
        """Its return."""
        return sum(reward for _, _, reward in self.turns)


class World:
    """States, actions and rewards, all known.

    Args:
        states: the actions of each state. What the environment says there is the state's name up
            to an ``@``, so that two states can look the same.
        starts: the first state of each task.

    Raises:
        ValueError: a state's actions are not the leaves of a full tree.
    """

    def __init__(self, states: Mapping[str, Actions], starts: Sequence[str]) -> None:
        self.states = states
        self.starts = tuple(starts)
        letters = sorted({letter for actions in states.values() for a in actions for letter in a})
        self.num_letters = len(letters)
        self._letter = {letter: i for i, letter in enumerate(letters)}
        prefixes = [
            (state, prefix)
            for state, actions in states.items()
            for prefix in sorted({a[:i] for a in actions for i in range(len(a))})
        ]
        for state, prefix in prefixes:
            for letter in letters:
                grown = prefix + letter
                if grown not in states[state] and (state, grown) not in prefixes:
                    raise ValueError(f"state {state!r} has no action that begins with {grown!r}")
        self.contexts = {place: i for i, place in enumerate(prefixes)}
        self.episodes = [
            episode
            for task, state in enumerate(self.starts)
            for episode in self._ways(task, state, Episode(task, (), (), ()))
        ]

    @property
    def num_contexts(self) -> int:
        """Rows of a table of logits."""
        return len(self.contexts)

    def _ways(self, task: int, state: str, so_far: Episode) -> Iterator[Episode]:
        for action, (then, reward) in self.states[state].items():
            episode = Episode(
                task,
                (*so_far.turns, (state, action, reward)),
                (*so_far.contexts, *(self.contexts[state, action[:i]] for i in range(len(action)))),
                (*so_far.letters, *(self._letter[letter] for letter in action)),
            )
            if then is None:
                yield episode
            else:
                yield from self._ways(task, then, episode)

    def logprobs(self, logits: Tensor) -> Tensor:
        """Log-probability of every episode, given its task. ``[E]``."""
        table = logits.log_softmax(-1)
        return torch.stack([table[list(e.contexts), list(e.letters)].sum() for e in self.episodes])

    def expectation(self, logits: Tensor, amounts: Tensor) -> Tensor:
        """The mean over tasks of E[amount of an episode]; ``amounts`` is ``[E]``. A scalar."""
        return (self.logprobs(logits).exp() * amounts).sum() / len(self.starts)

    @property
    def returns(self) -> Tensor:
        """Of every episode, ``[E]``."""
        return torch.tensor([e.reward for e in self.episodes], dtype=torch.float64)

    @property
    def lengths(self) -> Tensor:
        """Sampled tokens of every episode, ``[E]``."""
        return torch.tensor([len(e.letters) for e in self.episodes], dtype=torch.float64)

    def gradient(self, logits: Tensor, amounts: Tensor | None = None) -> Tensor:
        """The policy gradient: of the expected amount, by default the return. ``[C, V]``."""
        at = logits.clone().requires_grad_()
        value = self.expectation(at, self.returns if amounts is None else amounts)
        (gradient,) = torch.autograd.grad(value, at)
        return gradient

    def visits(self, logits: Tensor) -> Tensor:
        """How often an episode comes to each context, on average over tasks. ``[C]``."""
        probabilities = self.logprobs(logits).exp() / len(self.starts)
        visits = torch.zeros(self.num_contexts, dtype=torch.float64)
        for episode, probability in zip(self.episodes, probabilities, strict=True):
            visits[list(episode.contexts)] += probability
        return visits

    def values(self, logits: Tensor) -> Tensor:
        """The expected sum of the rewards still to come, at each context. ``[C]``."""
        total = torch.zeros(self.num_contexts, dtype=torch.float64)
        probabilities = self.logprobs(logits).exp() / len(self.starts)
        for episode, probability in zip(self.episodes, probabilities, strict=True):
            to_go = episode.reward
            place = 0
            for _, action, reward in episode.turns:
                for _ in action:
                    total[episode.contexts[place]] += probability * to_go
                    place += 1
                to_go -= reward
        return total / self.visits(logits)


@dataclass
class Setting:
    """A world, and the tables of logits ``[C, V]`` that act in it."""

    world: World
    logits: Tensor
    """The policy that is trained."""
    sampler: Tensor
    """The policy that sampled; the same, where it is on-policy."""
    reference: Tensor | None = None
    """What a divergence is from."""
    scores: Tensor | None = None
    """What a model of tokens says that each is worth."""
    _trajectories: dict[int, Trajectory] = field(default_factory=dict)

    @classmethod
    def on_policy(cls, world: World, seed: int = 0, scale: float = 0.7) -> Setting:
        """Logits drawn from a normal distribution."""
        logits = drawn(world, seed, scale)
        return cls(world, logits, logits)

    def sampled_by(self, sampler: Tensor) -> Setting:
        """The same with another policy that samples."""
        return replace(self, sampler=sampler, _trajectories={})

    @cached_property
    def values(self) -> Tensor:
        """The exact values, ``[C]``."""
        return self.world.values(self.logits)

    @property
    def probabilities(self) -> Tensor:
        """Of each episode under the sampler, given its task. ``[E]``."""
        return self.world.logprobs(self.sampler).exp()

    def trajectory(self, number: int) -> Trajectory:
        """The record of an episode; observations have one to three tokens."""
        if number not in self._trajectories:
            self._trajectories[number] = self._record(self.world.episodes[number])
        return self._trajectories[number]

    def trajectories(self, group: Group) -> list[Trajectory]:
        """Those of a group."""
        return [self.trajectory(number) for number in group]

    def _record(self, episode: Episode) -> Trajectory:
        world, table = self.world, self.sampler.log_softmax(-1)
        segment, turns, place = Segment(), [], 0
        names = list(world.states)
        for index, (state, action, reward) in enumerate(episode.turns):
            told = world.num_letters + names.index(state)
            segment.append_context([told] * (1 + names.index(state) % 3), index)
            span = slice(place, place + len(action))
            contexts, letters = episode.contexts[span], episode.letters[span]
            place += len(action)
            logprobs = tuple(table[list(contexts), list(letters)].tolist())
            versions = (0,) * len(action)
            completion = Completion(letters, logprobs, versions, FinishReason.STOP_TOKEN)
            segment.append_completion(completion, index)
            then = world.states[state][action][0]
            said = "over" if then is None else then.split("@")[0]
            turns.append(Turn(action, said, "stop_token", len(action), {"task": reward}))
        return Trajectory("tabular", {}, episode.task, 0, 0, [segment], turns, terminated=True)


def drawn(world: World, seed: int, scale: float) -> Tensor:
    """Logits drawn from a normal distribution. ``[C, V]``."""
    noise = np.random.default_rng(seed).normal(0, scale, (world.num_contexts, world.num_letters))
    return torch.from_numpy(noise)


def all_groups(setting: Setting, size: int) -> tuple[list[Group], Tensor]:
    """Every group that can be drawn, in no order of its members, and its probability.

    Tasks are equally likely.
    """
    probabilities = setting.probabilities.tolist()
    groups, weights = [], []
    for task in range(len(setting.world.starts)):
        numbers = [i for i, e in enumerate(setting.world.episodes) if e.task == task]
        for group in itertools.combinations_with_replacement(numbers, size):
            orders = math.factorial(size)
            for number in set(group):
                orders //= math.factorial(group.count(number))
            groups.append(group)
            weights.append(orders * math.prod(probabilities[i] for i in group))
    return groups, torch.tensor(weights, dtype=torch.float64) / len(setting.world.starts)


def draw_updates(
    setting: Setting, count: int, members: int, generator: np.random.Generator
) -> list[list[Group]]:
    """So many updates, each with one group of every task."""
    world, probabilities = setting.world, setting.probabilities.numpy()
    columns = []
    for task in range(len(world.starts)):
        numbers = np.asarray([i for i, e in enumerate(world.episodes) if e.task == task])
        chances = probabilities[numbers] / probabilities[numbers].sum()
        columns.append(generator.choice(numbers, (count, members), p=chances))
    return [[tuple(column[i].tolist()) for column in columns] for i in range(count)]


class Trials:
    """Values by trial, as ``rl.rollout.vine`` records them.

    A turn's is the mean return of so many continuations from its state; the state in which a group
    begins is valued once.

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
        batch = Batch.from_groups(
            [TrajectoryGroup(record(group)) for group in groups],
            outcomes=[float(episodes[number].reward > 0.5) for number in numbers],
        )
        assert batch.targets.tolist() == [x for i in numbers for x in episodes[i].letters]
        of_episode = [u for u, update in enumerate(updates) for group in update for _ in group]
        contexts = torch.tensor([c for i in numbers for c in episodes[i].contexts])
        owners = torch.tensor(of_episode)[batch.episode_ids]
        return cls(setting, batch, contexts, owners, len(updates))

    def look_up(self, logits: Tensor) -> Tensor:
        """Log-probabilities of the tokens, ``[N]``."""
        return logits.log_softmax(-1)[self.contexts, torch.from_numpy(self.batch.targets)]

    def weights(self, algorithm: Algorithm) -> Tensor:
        """Of each token in its update, ``[N]``; as ``Learner`` chooses the sequences."""
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
        """What stays fixed, as ``rl.learner.fixed_terms`` has it."""
        setting, batch = self.setting, self.batch
        old, ref, valued, scores = self.look_up(setting.logits), None, None, None
        if algorithm.kl_coef:
            assert setting.reference is not None
            ref = self.look_up(setting.reference)
        if algorithm.uses_values:
            valued = (setting.values if values is None else values)[self.contexts]
        if algorithm.token_rewards != "none":
            assert setting.scores is not None
            scores = setting.scores[self.contexts, torch.from_numpy(batch.targets)]
        credit = assign_credit(algorithm, batch, valued, old, ref, scores)
        corrections = None
        if algorithm.correction != "none":
            corrections, _ = correction_weights(
                algorithm, old, batch.sampling_logprobs, batch.episode_ids
            )
        return FixedTerms(
            advantages=credit.advantages,
            old_logprobs=batch.sampling_logprobs if algorithm.old_logprobs == "sampling" else old,
            ref_logprobs=ref if algorithm.kl_place == "loss" else None,
            corrections=corrections,
        )


def looks_at_all(algorithm: Algorithm) -> bool:
    """Whether an advantage depends on more than its own group."""
    return algorithm.whiten or algorithm.advantage in ("batch-outcome", "group-dense")


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


BANDIT = World({"arms": {"a": (None, 1.0), "b": (None, 0.2), "c": (None, -0.5)}}, ["arms"])
"""One turn of one token."""

ANSWERS = World(
    {"ask": {"a": (None, 0.4), "ba": (None, 1.0), "bba": (None, 0.3), "bbb": (None, 0.0)}},
    ["ask"],
)
"""One turn of one to three tokens."""

CHAIN = World(
    {
        "start": {"a": ("left", 0.0), "ba": ("right", 0.1), "bb": (None, 0.3)},
        "left": {"a": (None, 0.0), "b": ("end", 0.0)},
        "right": {"aa": ("end", 0.0), "ab": (None, 0.5), "b": (None, -0.2)},
        "end": {"a": (None, 1.0), "b": (None, 0.0)},
    },
    ["start"],
)
"""One to three turns of one or two tokens, some rewards on the way."""

EVEN = World(
    {
        "one": {"aa": ("two", 0.0), "ab": ("two", 0.4), "ba": ("too", 0.0), "bb": ("two", 0.1)},
        "two": {"aa": (None, 1.0), "ab": (None, 0.0), "ba": (None, 0.2), "bb": (None, 0.5)},
        "too": {"aa": (None, 0.0), "ab": (None, 0.3), "ba": (None, 1.5), "bb": (None, -0.5)},
    },
    ["one"],
)
"""Two turns of two tokens each, whatever is done."""
