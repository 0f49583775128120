"""One episode, from its first attempt to its record.

Whatever goes wrong in an attempt for reasons that are not the agent's is a failure of this episode
alone: it has no reward and enters no baseline. Time is such a reason: how long an attempt takes
says how fast the machine is.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from agents.agent import ContextFull, TokenAgent
from agents.policy import PolicyFailure
from envs.env import TextEnv
from envs.episode import EnvFailure, EnvToolCall, StepResult, StopReason
from envs.record import Recorder
from rl.rollout.attempt import Attempt
from rl.rollout.trajectory import ToolCall, Trajectory, Turn
from rl.run.monitoring.activity import (
    ENVIRONMENT,
    GENERATE,
    POLICY,
    QUEUE,
    ROLLOUT,
    TOOL,
    Activity,
)
from tools.owner import acting_for

if TYPE_CHECKING:
    from rl.rollout.collector import Collector

logger = logging.getLogger(__name__)
LARGEST_NUMBER = 1e15
"""Of a reward or score. The learner computes in 32 bits, where squares of returns must fit."""
_SHORTEST_LOOK_S = 0.05
_IN_WORDS = {
    GENERATE: "the policy",
    ENVIRONMENT: "the environment",
    TOOL: "a tool",
    QUEUE: "a service's queue",
}


class EpisodeTimeout(RuntimeError):
    """Raised when an episode took too long: somebody was slow, and it was not the agent."""

    retryable = True


def seed_of(*key: int) -> int:
    """A 63-bit seed that depends on every number of ``key`` and on nothing else."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=8).digest()
    return int.from_bytes(digest) >> 1


class Episode:
    """One episode of a collection: a task, a member of its group, and the seeds of both.

    Args:
        collector: whose environment, policy and limits it is played with.
        task: index of the task in the environment's split.
        member: index in its group.
        seed_key: what its environment's seed depends on; sampling seeds depend on the member and
            the turn as well.
        keeps_starts: whether to keep a copy of the episode from the beginning of each turn.
    """

    def __init__(
        self,
        collector: Collector,
        task: int,
        member: int,
        seed_key: tuple[int, ...],
        *,
        keeps_starts: bool = False,
    ) -> None:
        self.collector = collector
        self.task = task
        self.member = member
        self.seed_key = seed_key
        self.env_seed = seed_of(*seed_key)
        self.attempt = 0
        self.starts: list[Attempt] = []
        """With ``keeps_starts``: copies made as each turn began, of the last attempt; whoever plays
        the episode calls :meth:`close_starts`. The last may be of a turn that was not taken."""
        self._keeps_starts = keeps_starts
        self._activity: Activity
        """What it does, while it is played."""
        self._num_asked = 0
        """Requests that the policy did not answer yet."""

    @property
    def session(self) -> str:
        """The name under which the policy knows this attempt."""
        return "/".join(map(str, (*self.seed_key, self.task, self.member, self.attempt)))

    async def play(self) -> Trajectory:
        """Play it, again after each retryable failure, and return its checked record."""
        activities = self.collector.activities
        name = f"{self.collector.options.split} task {self.task}, member {self.member}"
        doing = activities.doing(ROLLOUT, name, ENVIRONMENT)
        with acting_for(self.session), doing as self._activity:
            trajectory = await self._play()
        activities.progressed("an episode")
        self.collector.on_episode()
        return trajectory

    async def _play(self) -> Trajectory:
        policy = self.collector.policy
        try:
            while True:
                trajectory, retryable = await self._attempt()
                trajectory.check()
                if not retryable or self.attempt >= self.collector.limits.retries:
                    if trajectory.failure is not None:
                        logger.warning("episode %s failed: %s", self.session, trajectory.failure)
                    return trajectory
                logger.warning("episode %s is begun again: %s", self.session, trajectory.failure)
                former = self.session
                self.attempt += 1
                # In this order: a policy that sees nobody left takes the collection for over.
                policy.begin([self.session])
                policy.end(former)
        finally:
            policy.end(self.session)

    async def close_starts(self) -> None:
        """Give back the copies that were kept."""
        starts, self.starts = self.starts, []
        for start in starts:
            failure = await self._close(start.env)
            if failure is not None:
                logger.warning("a copy of episode %s did not close: %s", self.session, failure)

    async def _attempt(self) -> tuple[Trajectory, bool]:
        """One attempt; the second value says whether its failure may be retried."""
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
        """Play one attempt into ``trajectory``; what went wrong, or None."""
        attempt, failure, unclosed = None, None, None
        try:
            async with self._in_time():
                with self._blamed():
                    attempt = await self._open(trajectory)
                    attempt.recorder.on_tool = self._on_tool
                await self._run(attempt)
        except (EnvFailure, PolicyFailure, EpisodeTimeout) as raised:
            failure = raised
        finally:
            if attempt is not None:
                unclosed = await self._close(attempt.env)
        return failure or unclosed

    def _waited_for(self) -> str:
        """What it waits for at this moment, in words."""
        return _IN_WORDS[self._activity.state]

    def _on_tool(self, busy: bool) -> None:
        self._activity.enter(TOOL if busy else ENVIRONMENT)

    def _record(self) -> Trajectory:
        """What an attempt is written down in."""
        return Trajectory(
            env_id=self.collector.env_id,
            env_options=asdict(self.collector.options),
            task=self.task,
            seed=self.env_seed,
            member=self.member,
            attempts=self.attempt + 1,
        )

    async def _open(self, trajectory: Trajectory) -> Attempt:
        """An attempt whose environment is there, and closed by the caller."""
        env = self.collector.make_env()
        env.tool_tap = recorder = Recorder(calls=trajectory.calls, tools=trajectory.tools)
        return Attempt(env, trajectory, recorder)

    async def _begin(self, attempt: Attempt) -> None:
        """Bring an opened attempt to its first turn, or to the one that it goes on with."""
        env = attempt.env
        reset = env.areset(seed=self.env_seed, options={"task": self.task})
        observation, _ = await reset
        attempt.trajectory.begun(env.episode_id, observation, env.system_prompt)
        self._listen(attempt, observation)

    async def _close(self, env: TextEnv[Any, Any]) -> EnvFailure | None:
        """Close an environment; what went wrong, or None."""
        try:
            with self._blamed():
                async with asyncio.timeout(env.options.step_timeout_s):
                    await env.aclose()
        except EnvFailure as raised:
            return raised
        return None

    async def _run(self, attempt: Attempt) -> None:
        collector, env, trajectory = self.collector, attempt.env, attempt.trajectory
        with self._blamed():
            await self._begin(attempt)
        while True:
            if self._keeps_starts:
                with self._blamed():
                    self.starts.append(await attempt.fork(replace(trajectory)))
            self._activity.enter(QUEUE)
            await collector.services_ready()
            asked = time.perf_counter()
            agent = attempt.agents[env.role]
            try:
                with self._generating():
                    action = await agent.act()
            except ContextFull:
                return _truncate(trajectory, StopReason.CONTEXT_FULL)
            answered = time.perf_counter()
            attempt.recorder.turn += 1
            with self._blamed():
                result = await env.astep(action)
                env_s = time.perf_counter() - answered
                trajectory.turns.append(_turn(agent, action, result, answered - asked, env_s))
                trajectory.turns[-1].role = agent.segment.role
            if result.terminated:
                trajectory.terminated = True
                return None
            if result.truncated:
                return _truncate(trajectory, result.info["stop_reason"])
            limit = collector.limits.episode_tokens
            if limit and trajectory.num_sampled >= limit:
                return _truncate(trajectory, StopReason.TOKEN_LIMIT)
            with self._blamed():
                self._listen(attempt, result.observation)

    def _listen(self, attempt: Attempt, observation: str) -> None:
        """Let whoever acts next read ``observation``; a role that is new begins a conversation."""
        collector, env, trajectory = self.collector, attempt.env, attempt.trajectory
        if env.role in attempt.agents:
            agent = attempt.agents[env.role]
            agent.num_turns = len(trajectory.turns)
            agent.observe(observation, continues=env.continues)
            return
        agent = attempt.agents[env.role] = TokenAgent(
            collector.renderer,
            collector.policy,
            collector.sampling,
            # Of an episode's roles one speaks at a time.
            session=self.session,
            context_length=collector.limits.context_length,
            turn_seed=self._turn_seed,
        )
        agent.segment.role, agent.num_turns = env.role, len(trajectory.turns)
        trajectory.segments.append(agent.segment)
        agent.start(observation, env.system_prompt, env.stop, env.prefill, env.tool_schemas)

    @contextmanager
    def _generating(self) -> Iterator[None]:
        """While the context lasts, the policy is asked; then the environment is."""
        policy, activity = self.collector.policy, self._activity
        queued_s = policy.queued_s(self.session)
        activity.enter(GENERATE)
        self._num_asked += 1
        try:
            with self.collector.activities.busy(POLICY, GENERATE):
                yield
        finally:
            self._num_asked -= 1
            if not self._num_asked:
                activity.was(QUEUE, policy.queued_s(self.session) - queued_s)
                activity.enter(ENVIRONMENT)

    def _turn_seed(self, turn: int) -> int:
        return seed_of(*self.seed_key, self.member, turn)

    @asynccontextmanager
    async def _in_time(self) -> AsyncIterator[None]:
        """Raise EpisodeTimeout when its body takes too long, what the policy queues not counted."""
        policy, session = self.collector.policy, self.session
        limit_s = self.collector.limits.episode_timeout_s
        loop = asyncio.get_running_loop()
        began = loop.time()
        next_look: asyncio.TimerHandle
        why = ""

        def end(reason: str) -> None:
            nonlocal why
            if why:
                return  # It is ending, and takes its time.
            why = f"{reason}, at last waiting for {self._waited_for()}"
            timer.reschedule(loop.time())

        def look() -> None:
            nonlocal next_look
            left = limit_s - (loop.time() - began - policy.queued_s(session))
            if left > 0:
                next_look = loop.call_later(max(left, _SHORTEST_LOOK_S), look)
            else:
                end(f"took longer than episode_timeout_s ({limit_s:g} s)")

        timer = asyncio.timeout(None)
        next_look = loop.call_later(limit_s, look)
        self._activity.give_up = lambda: end("was given up: nothing in the run got further")
        try:
            async with timer:
                yield
        except TimeoutError as error:
            if not timer.expired():
                raise  # The policy's own, which breaks its contract.
            raise EpisodeTimeout(why) from error
        finally:
            self._activity.give_up = None
            next_look.cancel()

    @contextmanager
    def _blamed(self) -> Iterator[None]:
        """What an author's code raises must not stop the other episodes, and is never a reward."""
        try:
            yield
        except EnvFailure:
            raise
        # An author may raise the last two as well, and mean nobody else's end by it.
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise
            env_id = self.collector.env_id
            logger.exception("environment %s failed on task %d", env_id, self.task)
            what = f"{env_id} raised {type(error).__name__}: {error}"
            raise EnvFailure(what, retryable=False) from error


def _truncate(trajectory: Trajectory, reason: StopReason) -> None:
    trajectory.truncated = True
    trajectory.stop_reason = reason.value


def _turn(
    agent: TokenAgent, action: str, result: StepResult, generate_s: float, env_s: float
) -> Turn:
    completion = agent.last
    assert completion is not None
    return Turn(
        action=str(action),
        observation=result.observation,
        finish_reason=completion.finish_reason.value,
        num_tokens=len(completion.token_ids),
        rewards=_numbers("rewards", result.info["rewards"]),
        scores=_numbers("scores", result.info["scores"]),
        tool_calls=[_tool_call(call) for call in result.info["tool_calls"]],
        generate_s=generate_s,
        env_s=env_s,
    )


def _numbers(kind: str, values: Mapping[str, Any]) -> dict[str, float]:
    """An environment's numbers as plain floats; one that is none fails the episode."""
    try:
        numbers = {str(name): float(value) for name, value in values.items()}
    except (TypeError, ValueError) as error:
        raise EnvFailure(f"{kind} ({values}) must be numbers", retryable=False) from error
    # Written so that nan fails.
    if not all(abs(number) <= LARGEST_NUMBER for number in numbers.values()):
        message = f"{kind} ({numbers}) must be finite, and at most {LARGEST_NUMBER:g} in size"
        raise EnvFailure(message, retryable=False)
    return numbers


def _tool_call(call: EnvToolCall) -> ToolCall:
    """The call for the record, which is written as JSON."""
    if not isinstance(call, EnvToolCall):
        raise TypeError(f"tool_calls must hold EnvToolCalls, not {type(call).__name__}")
    made = ToolCall(call.name, dict(call.arguments), call.text, call.error, call.cost)
    json.dumps(asdict(made))
    return made
