"""Worlds that are small enough to compute every quantity exactly.

A :class:`World` defines its states and the successor of each action. An action is a string of
tokens (letters). The actions of a state are the leaves of a tree in which every inner node has all
letters, so a turn may have one token or several. A *context* is a node of such a tree: the tokens
that the policy has read when it samples the next one. The policy is a table of logits with one row
for each context. All episodes can be enumerated; values and the policy gradient follow by
recursion.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from agents.completion import Completion, FinishReason
from rl.rollout.trajectory import Segment, Trajectory, Turn

Actions = Mapping[str, tuple[str | None, float]]
"""The next state (None at the episode's end) and the reward of each action of a state."""
Group = tuple[int, ...]
"""The numbers of a group's episodes."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One of the ways through a world."""

    task: int
    turns: tuple[tuple[str, str, float], ...]
    """State, action and reward of each."""
    contexts: tuple[int, ...]
    """The context of each sampled token."""
    letters: tuple[int, ...]
    """The sampled tokens."""

    @property
    def reward(self) -> float:
        """The episode's return."""
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
        """The return of every episode, ``[E]``."""
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
        """Mean number of visits of an episode to each context, over tasks. ``[C]``."""
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
    """The reference policy of a divergence."""
    scores: Tensor | None = None
    """Scores of the tokens by a token reward model."""
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
        """Probability of each episode under the sampler, given its task. ``[E]``."""
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
            token = world.num_letters + names.index(state)
            segment.append_context([token] * (1 + names.index(state) % 3), index)
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
    """Draw updates, each with one group of every task."""
    world, probabilities = setting.world, setting.probabilities.numpy()
    columns = []
    for task in range(len(world.starts)):
        numbers = np.asarray([i for i, e in enumerate(world.episodes) if e.task == task])
        chances = probabilities[numbers] / probabilities[numbers].sum()
        columns.append(generator.choice(numbers, (count, members), p=chances))
    return [[tuple(column[i].tolist()) for column in columns] for i in range(count)]


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
