"""Monte Carlo values of states, as in VinePPO (Kazemnejad et al., arXiv 2410.01679, section 4).

The value of the state at the start of a turn is the mean return-to-go of several continuations. The
same policy plays each continuation, from a copy of the environment and of the agents'
conversations, with separate random numbers. Continuations do not change the episode itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from envs.episode import NotForkable
from rl.errors import UsageError
from rl.rollout.attempt import Attempt
from rl.rollout.context import EpisodeContext
from rl.rollout.episode import Episode, play_episodes
from rl.rollout.trajectory import Trajectory

logger = logging.getLogger(__name__)
_STREAM = 0x71E5
"""Makes the random numbers of continuations differ from those of episodes."""


class VineFailure(RuntimeError):
    """Failure of an episode because all continuations of one of its turns failed."""


@dataclass(frozen=True, kw_only=True)
class VineConfig:
    """Settings of VinePPO's Monte Carlo values of states."""

    rollouts: int
    """Number of continuations from each state."""
    gamma_turn: float = 1.0
    """Discount per turn."""


class Continuation(Episode):
    """One continuation of an episode, which starts from a copy.

    Args:
        context: the policy and the limits.
        start: the copy, which the continuation leaves unchanged.
        key: key of the state. The key and ``number`` determine the seeds.
        number: index among the state's continuations.
    """

    def __init__(
        self, context: EpisodeContext, start: Attempt, key: tuple[int, ...], number: int
    ) -> None:
        super().__init__(context, start.trajectory.task, number, (*key, number))
        self.start = start

    def _record(self) -> Trajectory:
        return replace(self.start.trajectory, attempts=self.attempt + 1)

    async def _open(self, trajectory: Trajectory) -> Attempt:
        attempt = await self.start.fork(trajectory, reseed=self.env_seed)
        for agent in attempt.agents.values():
            agent.session, agent.turn_seed = self.session, self._turn_seed
        for agent in attempt.partners.values():
            agent.session, agent.turn_seed = self.session, self._partner_seed(attempt)
        return attempt

    async def _begin(self, attempt: Attempt) -> None:
        """Do nothing, because continuations start in the middle of an episode."""


@dataclass(slots=True)
class _State:
    """A state, and the episodes that reached it."""

    start: Attempt
    key: tuple[int, ...]
    turn: int
    """Index of the turn that starts in the state."""
    episodes: list[Trajectory]
    """The episodes that reached the state. The first episode records the counts of
    continuations."""

    def continuations(self, context: EpisodeContext, count: int) -> list[Continuation]:
        return [Continuation(context, self.start, self.key, i) for i in range(count)]

    def settle(self, played: Sequence[Trajectory], gamma_turn: float) -> None:
        """Record the state's value, and the counts of its continuations and of their tokens."""
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
    """The discounted sum of a role's rewards from turn ``turn`` on.

    As in ``rl.credit.batch``, later rewards are discounted once for each of the role's turns that
    has a token. Rewards that the role receives at other roles' turns belong to the role's preceding
    turn. Rewards that the role receives before its first turn with a token belong to that first
    turn.
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
    context: EpisodeContext,
    vine: VineConfig,
    episodes: Sequence[Episode],
    trajectories: Sequence[Trajectory],
) -> None:
    """Set the value of each turn of the finished episodes.

    The members of a group share their first state, which is valued once. The number of
    continuations that run at the same time is about the number of episodes. A failed continuation
    does not contribute to a value. An episode fails if one of its turns has no value.

    Args:
        context: environment, policy and limits, which the continuations share with the episodes.
        vine: number and discount of the continuations.
        episodes: the played episodes, with their kept copies.
        trajectories: their records, in the same order.
    """
    states = list(_states(episodes, trajectories))
    at_once = max(1, len(episodes) // vine.rollouts)
    for first in range(0, len(states), at_once):
        some = states[first : first + at_once]
        played = iter(
            await play_episodes(
                context, [c for state in some for c in state.continuations(context, vine.rollouts)]
            )
        )
        for state in some:
            state.settle([next(played) for _ in range(vine.rollouts)], vine.gamma_turn)


def _states(episodes: Sequence[Episode], trajectories: Sequence[Trajectory]) -> Iterator[_State]:
    """The states of all finished episodes, in the order of the episodes."""
    first: dict[tuple[int, ...], _State] = {}
    for episode, trajectory in zip(episodes, trajectories, strict=True):
        if trajectory.failure is not None:
            continue
        for turn, played in enumerate(trajectory.turns):
            if played.by_partner:
                continue  # Nothing that a partner does is trained, so the state needs no value.
            if turn == 0 and episode.seed_key in first:
                first[episode.seed_key].episodes.append(trajectory)
                continue
            member = episode.member if turn else 0
            key = (*episode.seed_key, member, _STREAM, turn)
            state = _State(episode.starts[turn], key, turn, [trajectory])
            if turn == 0:
                first[episode.seed_key] = state
            yield state


async def require_copies(context: EpisodeContext) -> None:
    """Check that episodes can be copied, by copying one at its start.

    Raises:
        UsageError: the environment cannot be copied.
    """
    env = context.make_env()
    try:
        await env.areset(seed=0, options={"task": 0})
        twin = await env.afork(reseed=0)
        await twin.aclose()
    except NotForkable as error:
        raise UsageError(
            f"algo.advantage (vine) plays on from copies of an episode, and there are none: {error}"
        ) from error
    except Exception as error:
        # The episode that hits the error reports it; other tasks may work.
        logger.warning("%s: whether it can be copied could not be tried: %s", env, error)
    finally:
        await env.aclose()
