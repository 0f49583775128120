"""One episode with its roles, deadline and retries, from the first attempt to the record.

An error that the agent did not cause makes only this episode fail: it has no reward and counts in
no baseline. A timeout is such a failure, because time depends on the machine.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from typing import Any

import envs
from agents.agent import Agent, ContextFull
from agents.policy import PolicyFailure
from envs.author_errors import raised
from envs.env import TextEnv, held_account
from envs.episode import Action, EnvFailure, StopReason
from envs.record import Recorder
from rl.rollout.attempt import Attempt, asked, turn_of
from rl.rollout.context import EpisodeContext
from rl.rollout.trajectory import Trajectory
from rl.run.metrics.episodes import share_of_success
from rl.run.process.activity import (
    ENVIRONMENT,
    GENERATE,
    PARTNER,
    POLICY,
    QUEUE,
    ROLLOUT,
    TOOL,
    Activity,
)
from tools.owner import acting_for

logger = logging.getLogger(__name__)
_OF_PARTNER, _ALL_MEMBERS = 0x9A27, -1
"""Parts of the keys of a partner's seeds: the first separates them from the policy's seeds, and the
second stands for the member in turns before the first turn of a trained role."""
_SHORTEST_CHECK_S = 0.05
_NAMES = {
    GENERATE: "the policy",
    ENVIRONMENT: "the environment",
    TOOL: "a tool",
    QUEUE: "a service's queue",
    PARTNER: "a partner",
}


class EpisodeTimeout(RuntimeError):
    """Raised when an attempt exceeds ``episode_timeout_s``, which is not the agent's fault."""

    retryable = True


def seed_of(*key: int) -> int:
    """A 63-bit seed that depends only on the numbers of ``key``."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


class Episode:
    """One episode of a collection: a task, a member of its group, and their seeds.

    Args:
        context: the environment, the policy and the limits.
        task: index of the task in the environment's split.
        member: index of the episode in its group.
        seed_key: determines the environment's seed. Sampling seeds also depend on the member and
            the turn.
        keeps_starts: whether to keep a copy of the episode from the start of each turn.
    """

    def __init__(
        self,
        context: EpisodeContext,
        task: int,
        member: int,
        seed_key: tuple[int, ...],
        *,
        keeps_starts: bool = False,
    ) -> None:
        self.context = context
        self.task = task
        self.member = member
        self.seed_key = seed_key
        self.env_seed = seed_of(*seed_key)
        self.attempt = 0
        self.starts: list[Attempt] = []
        """With ``keeps_starts``: a copy from the start of each turn of the last attempt. The
        caller closes the copies with :meth:`close_starts`. The last copy may belong to a turn
        without an action."""
        self._keeps_starts = keeps_starts
        self._activity: Activity
        """Reports, while the episode is played, what it waits for."""
        self._num_asked = 0
        """Number of requests that wait for the policy."""

    @property
    def session(self) -> str:
        """Name of this attempt in requests to the policy."""
        return "/".join(map(str, (*self.seed_key, self.task, self.member, self.attempt)))

    async def play(self) -> Trajectory:
        """Play the episode, retry after retryable failures, and return the checked record."""
        activities = self.context.activities
        name = f"{self.context.options.split} task {self.task}, member {self.member}"
        doing = activities.doing(ROLLOUT, name, ENVIRONMENT)
        with acting_for(self.session), doing as self._activity:
            held_account.set(self._activity)
            trajectory = await self._play()
        self.context.played(self.task, self.member, trajectory)
        return trajectory

    async def _play(self) -> Trajectory:
        policy = self.context.policy
        try:
            while True:
                trajectory, retryable = await self._attempt()
                await trajectory.acheck()
                if not retryable or self.attempt >= self.context.limits.retries:
                    if trajectory.failure is not None:
                        logger.warning("episode %s failed: %s", self.session, trajectory.failure)
                    return trajectory
                logger.warning("episode %s is begun again: %s", self.session, trajectory.failure)
                former = self.session
                self.attempt += 1
                # begin before end: a policy without sessions considers the collection complete.
                policy.begin([self.session])
                self.context.end(former)
        finally:
            self.context.end(self.session)

    async def close_starts(self) -> None:
        """Close the copies in ``starts``."""
        starts, self.starts = self.starts, []
        for start in starts:
            failure = await self._close(start.env)
            if failure is not None:
                logger.warning("a copy of episode %s did not close: %s", self.session, failure)

    async def _attempt(self) -> tuple[Trajectory, bool]:
        """The record of one attempt, and whether the attempt failed and can be retried."""
        trajectory = self._record()
        failure = await self._failure_of(trajectory)
        if failure is None:
            return trajectory, False
        trajectory.fail(failure)
        await self.close_starts()
        return trajectory, failure.retryable

    async def _failure_of(
        self, trajectory: Trajectory
    ) -> EnvFailure | PolicyFailure | EpisodeTimeout | None:
        """Record one attempt in ``trajectory``, and return the attempt's failure or None."""
        attempt, failure, unclosed = None, None, None
        try:
            async with self._in_time():
                with self._blamed():
                    attempt = await self._open(trajectory)
                    attempt.recorder.on_tool = self._on_tool
                await self._run(attempt)
                with self._blamed():
                    trajectory.outcome = outcome_of(trajectory, attempt.env)
        except (EnvFailure, PolicyFailure, EpisodeTimeout) as raised:
            failure = raised
        finally:
            if attempt is not None:
                unclosed = await self._close(attempt.env)
        return failure or unclosed

    def _clock(self) -> float:
        """Seconds that pass unless another episode's code holds the event loop."""
        held_by_others = self.context.activities.held_s - self._activity.held_s
        return time.perf_counter() - held_by_others

    def _waited_for(self) -> str:
        """Name of the component for which the episode waits now."""
        return _NAMES[self._activity.state]

    def _on_tool(self, busy: bool) -> None:
        self._activity.enter(TOOL if busy else ENVIRONMENT)

    def _record(self) -> Trajectory:
        """An empty record for an attempt."""
        return Trajectory(
            env_id=self.context.env_id,
            env_options=asdict(self.context.options),
            task=self.task,
            seed=self.env_seed,
            member=self.member,
            attempts=self.attempt + 1,
        )

    async def _open(self, trajectory: Trajectory) -> Attempt:
        """An attempt with an open environment. The caller closes the environment."""
        env = self.context.make_env()
        env.tool_tap = recorder = Recorder(calls=trajectory.calls, tools=trajectory.tools)
        return Attempt(env, trajectory, recorder)

    async def _begin(self, attempt: Attempt) -> None:
        """Prepare an open attempt for its first turn."""
        env = attempt.env
        reset = env.areset(seed=self.env_seed, options={"task": self.task})
        observation, _ = await reset
        attempt.trajectory.record_start(env.episode_id, observation, env.system_prompt)
        self._listen(attempt, observation)

    async def _close(self, env: TextEnv[Any, Any]) -> EnvFailure | None:
        """Close an environment, and return the failure or None."""
        try:
            with self._blamed():
                async with asyncio.timeout(env.options.step_timeout_s):
                    await env.aclose()
        except EnvFailure as raised:
            return raised
        return None

    async def _run(self, attempt: Attempt) -> None:
        context, env, trajectory = self.context, attempt.env, attempt.trajectory
        with self._blamed():
            await self._begin(attempt)
        while True:
            if self._keeps_starts:
                with self._blamed():
                    self.starts.append(await attempt.fork(replace(trajectory)))
            self._activity.enter(QUEUE)
            await context.services_ready()
            asked = self._clock()
            partner = env.role in attempt.partners
            agent = attempt.partners[env.role] if partner else attempt.agents[env.role]
            try:
                action = await (self._asked(agent, env.role) if partner else self._sampled(agent))
            except ContextFull:
                return _truncate(trajectory, StopReason.CONTEXT_FULL)
            answered = self._clock()
            attempt.record_segments()
            attempt.recorder.turn += 1
            with self._blamed():
                result = await env.astep(action)
                turn = turn_of(agent, action, result, partner=partner)
                turn.generate_s = max(0.0, answered - asked)
                turn.env_s = max(0.0, self._clock() - answered)
                trajectory.turns.append(turn)
            if result.terminated:
                trajectory.terminated = True
                return None
            if result.truncated:
                return _truncate(trajectory, result.info["stop_reason"])
            limit = context.limits.episode_tokens
            if limit and trajectory.num_sampled >= limit:
                return _truncate(trajectory, StopReason.TOKEN_LIMIT)
            with self._blamed():
                self._listen(attempt, result.observation)

    def _listen(self, attempt: Attempt, observation: str) -> None:
        """Pass ``observation`` to the role that acts next. A new role starts a conversation."""
        context, env, trajectory = self.context, attempt.env, attempt.trajectory
        known = attempt.agents | attempt.partners
        if env.role in known:
            agent = known[env.role]
            agent.num_turns = len(trajectory.turns)
            agent.observe(observation, continues=env.continues)
            return
        # The roles share a session: only one of them acts at a time.
        if (partner := context.partners.get(env.role)) is not None:
            agent = partner.new_agent(self.session, self._partner_seed(attempt))
            attempt.partners[env.role] = agent
        else:
            agent = context.new_agent(self.session, self._turn_seed)
            attempt.agents[env.role] = agent
            trajectory.segments.append(agent.segment)
        agent.segment.role, agent.num_turns = env.role, len(trajectory.turns)
        agent.start(observation, env.system_prompt, env.stop, env.prefill, env.tool_schemas)

    async def _sampled(self, agent: Agent) -> Action:
        """The next action by the policy."""
        with self._generating():
            return await agent.act()

    async def _asked(self, agent: Agent, role: str) -> Action:
        """The next action by a role's partner."""
        self._activity.enter(PARTNER)
        try:
            return await asked(agent, role)
        finally:
            self._activity.enter(ENVIRONMENT)

    @contextmanager
    def _generating(self) -> Iterator[None]:
        """Report that the episode waits for the policy and, on exit, for the environment."""
        policy, activity = self.context.policy, self._activity
        queued_s = policy.queued_s(self.session)
        activity.enter(GENERATE)
        self._num_asked += 1
        try:
            with self.context.activities.busy(POLICY, GENERATE):
                yield
        finally:
            self._num_asked -= 1
            if not self._num_asked:
                activity.was(QUEUE, policy.queued_s(self.session) - queued_s)
                activity.enter(ENVIRONMENT)

    def _turn_seed(self, turn: int) -> int:
        return seed_of(*self.seed_key, self.member, turn)

    def _partner_seed(self, attempt: Attempt) -> Callable[[int], int]:
        """The sampling seeds of a partner's turns.

        Before the first turn of a trained role, all members of a group have the same seeds, so that
        a group starts in the same state.
        """

        def seed(turn: int) -> int:
            member = self.member if attempt.agents else _ALL_MEMBERS
            return seed_of(*self.seed_key, _OF_PARTNER, member, turn)

        return seed

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """Raise EpisodeTimeout if the body exceeds the limit.

        Time in the queues of the policy and of partners does not count.
        """
        context, session = self.context, self.session
        limit_s = self.context.limits.episode_timeout_s
        loop = asyncio.get_running_loop()
        began = loop.time()
        next_check: asyncio.TimerHandle
        why = ""

        def end(reason: str) -> None:
            nonlocal why
            if why:
                return  # The attempt is ending already.
            why = f"{reason}, at last waiting for {self._waited_for()}"
            timer.reschedule(loop.time())

        def check_time() -> None:
            nonlocal next_check
            left = limit_s - (loop.time() - began - context.queued_s(session))
            if left > 0:
                next_check = loop.call_later(max(left, _SHORTEST_CHECK_S), check_time)
            else:
                end(f"took longer than episode_timeout_s ({limit_s:g} s)")

        timer = asyncio.timeout(None)
        next_check = loop.call_later(limit_s, check_time)
        self._activity.give_up = lambda: end("was given up: nothing in the run got further")
        try:
            async with timer:
                yield
        except TimeoutError as error:
            if not timer.expired():
                raise  # Another TimeoutError: the policy broke its contract.
            raise EpisodeTimeout(why) from error
        finally:
            self._activity.give_up = None
            next_check.cancel()

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """Turn any error in an environment's code into a failure of this episode."""
        try:
            yield
        except EnvFailure:
            raise
        # An environment's code may also raise CancelledError or SystemExit.
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            env_id = self.context.env_id
            what = f"{env_id} {raised(error, envs.env_type(env_id))}"
            # One error of a group's members, or of every task, has one traceback.
            new = what not in self.context.seen_errors
            self.context.seen_errors.add(what)
            logger.error("task %d failed: %s", self.task, what, exc_info=error if new else None)
            raise EnvFailure(what, retryable=False) from error


async def play_episodes(context: EpisodeContext, episodes: Sequence[Episode]) -> list[Trajectory]:
    """Play episodes concurrently, and return their records in the same order."""
    context.policy.begin([episode.session for episode in episodes])
    async with asyncio.TaskGroup() as running:
        played = [running.create_task(episode.play()) for episode in episodes]
    return [task.result() for task in played]


def outcome_of(trajectory: Trajectory, env: TextEnv[Any, Any]) -> float:
    """The success of a finished episode of ``env``, from 0 to 1."""
    return share_of_success(trajectory, env.success_score, env.reward_range)


def _truncate(trajectory: Trajectory, reason: StopReason) -> None:
    trajectory.truncated = True
    trajectory.stop_reason = reason.value
