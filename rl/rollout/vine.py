"""What states are worth, by trial: the policy plays on from copies of the episode, several times.

The values of VinePPO (Kazemnejad et al., arXiv 2410.01679, section 4). A state is that in which a
turn begins; its value is the mean return-to-go of continuations. Each is played by the same policy
from a copy of the live environment and of the agents' conversations, with random numbers of its
own. An episode is over when its continuations are played: it is what it would be without them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from envs.episode import NotForkable
from rl.credit.algorithm import Algorithm
from rl.errors import UsageError
from rl.rollout.attempt import Attempt
from rl.rollout.episode import Episode
from rl.rollout.trajectory import Trajectory

if TYPE_CHECKING:
    from rl.rollout.collector import Collector

logger = logging.getLogger(__name__)
_STREAM = 0x71E5
"""Tells a continuation's random numbers from those of every episode."""


class VineFailure(RuntimeError):
    """Why an episode failed of which a turn has no value: all continuations from it failed."""


@dataclass(frozen=True, kw_only=True)
class VineConfig:
    """How turns are valued."""

    rollouts: int
    """Continuations from each state."""
    gamma_turn: float = 1.0
    """Discount per turn."""


def vine_config(algorithm: Algorithm) -> VineConfig | None:
    """How an algorithm values turns by trial; None: it does not."""
    advantage = algorithm.advantage
    if not advantage.turn_rollouts:
        return None
    return VineConfig(rollouts=advantage.turn_rollouts, gamma_turn=advantage.turn_discount)


class Continuation(Episode):
    """One way in which an episode might have gone on.

    Args:
        collector: whose policy and limits it is played with.
        start: the copy from which it goes on; it stays as it is.
        key: of the state; what the seeds depend on, with ``number``.
        number: which of the state's continuations.
    """

    def __init__(
        self, collector: Collector, start: Attempt, key: tuple[int, ...], number: int
    ) -> None:
        super().__init__(collector, start.trajectory.task, number, (*key, number))
        self.start = start

    def _record(self) -> Trajectory:
        return replace(self.start.trajectory, attempts=self.attempt + 1)

    async def _open(self, trajectory: Trajectory) -> Attempt:
        attempt = await self.start.fork(trajectory, reseed=self.env_seed)
        for agent in attempt.agents.values():
            agent.session, agent.turn_seed = self.session, self._turn_seed
        return attempt

    async def _begin(self, attempt: Attempt) -> None:
        """It was begun, and whoever acts next has read what to answer."""


@dataclass(slots=True)
class _State:
    """A state and the episodes that were in it."""

    start: Attempt
    key: tuple[int, ...]
    turn: int
    """Which of the episodes' turns begins there."""
    episodes: list[Trajectory]
    """The first has the state's continuations in its count."""

    def continuations(self, collector: Collector, count: int) -> list[Continuation]:
        return [Continuation(collector, self.start, self.key, i) for i in range(count)]

    def settle(self, played: Sequence[Trajectory], gamma_turn: float) -> None:
        """Write down what the continuations earned, and what they cost."""
        finished = [t for t in played if t.failure is None]
        counted = self.episodes[0].continuations
        counted.count += len(played)
        counted.failed += len(played) - len(finished)
        counted.num_sampled += sum(u.num_tokens for t in finished for u in t.turns[self.turn :])
        if not finished:
            failure = VineFailure(
                f"none of {len(played)} continuations of turn {self.turn + 1} finished; the "
                f"first: {played[0].failure}"
            )
            for episode in self.episodes:
                episode.fail(failure)
            return
        role = self.start.env.role
        value = fmean(return_to_go(t, role, self.turn, gamma_turn) for t in finished)
        for episode in self.episodes:
            episode.turns[self.turn].value = value


def return_to_go(trajectory: Trajectory, role: str, turn: int, gamma_turn: float) -> float:
    """What a role earns from a turn of its own on.

    As in ``rl.credit.batch``: discounted by its own turns with a token, what others' turns pay it
    is earned at its turn before, and its first turn with a token earns what was paid before it too.
    """
    rewards, before = trajectory.rewards_of(role), trajectory.turns[:turn]
    spoke = any(acted.role == role and acted.num_tokens for acted in before)
    earned, weight = 0.0 if spoke else sum(rewards[:turn]), 1.0
    for index, paid in enumerate(rewards[turn:], turn):
        acted = trajectory.turns[index]
        if index > turn and acted.role == role and acted.num_tokens:
            weight *= gamma_turn
        earned += weight * paid
    return earned


async def value_turns(
    collector: Collector,
    vine: VineConfig,
    episodes: Sequence[Episode],
    trajectories: Sequence[Trajectory],
) -> None:
    """Give each turn of the finished episodes the value of the state in which it began.

    The members of a group share their first state, which is valued once. As many continuations are
    played at once as there are episodes. One that fails counts in no value; an episode of which a
    turn is left without a value fails.

    Args:
        collector: plays the continuations.
        vine: how many, and how they are discounted.
        episodes: what was played, with the copies that it kept.
        trajectories: their records, in the same order.
    """
    states = list(_states(episodes, trajectories))
    at_once = max(1, len(episodes) // vine.rollouts)
    for first in range(0, len(states), at_once):
        some = states[first : first + at_once]
        played = iter(
            await collector.play(
                [c for state in some for c in state.continuations(collector, vine.rollouts)]
            )
        )
        for state in some:
            state.settle([next(played) for _ in range(vine.rollouts)], vine.gamma_turn)


def _states(episodes: Sequence[Episode], trajectories: Sequence[Trajectory]) -> Iterator[_State]:
    """The states of all finished episodes, in their order."""
    first: dict[tuple[int, ...], _State] = {}
    for episode, trajectory in zip(episodes, trajectories, strict=True):
        if trajectory.failure is not None:
            continue
        for turn in range(len(trajectory.turns)):
            if turn == 0 and episode.seed_key in first:
                first[episode.seed_key].episodes.append(trajectory)
                continue
            member = episode.member if turn else 0
            key = (*episode.seed_key, member, _STREAM, turn)
            state = _State(episode.starts[turn], key, turn, [trajectory])
            if turn == 0:
                first[episode.seed_key] = state
            yield state


async def require_copies(collector: Collector) -> None:
    """Try to copy an episode that has just begun.

    Raises:
        UsageError: the environment says that it cannot be copied.
    """
    env = collector.make_env()
    try:
        await env.areset(seed=0, options={"task": 0})
        twin = await env.afork(reseed=0)
        await twin.aclose()
    except NotForkable as error:
        raise UsageError(
            f"algo.advantage (vine) plays on from copies of an episode, and there are none: {error}"
        ) from error
    except Exception as error:
        # Whoever plays the episode says it better, and goes on with the others.
        logger.warning("%s: whether it can be copied could not be tried: %s", env, error)
    finally:
        await env.aclose()
