"""The seconds of a training step on a number of GPUs, and the part that bounds it.

Without staleness, a step is the sum of its parts::

    step = rollouts + controller + learn + sync

Above 0, the rollouts of later updates run beside the other parts, on GPUs of their own. The
rollouts are simulated (:mod:`rl.planning.rollouts`). The other parts are::

    controller = episode_s * episodes; the rollouts take at least loop_s
    loop_s     = LOOP_S * turns in one process; in others, LOOP_S * turns / collectors, but at
                 least RECEIVE_S * episodes
    learn      = learn_fixed_s + micro_batches * max(compute, gather) + reduce
    compute    = learn_token_s * tokens / ranks / micro_batches, at least the longest row
    gather     = 2 * 2 bytes * parameters / bandwidth, forward and backward
    reduce     = 4 bytes * parameters / bandwidth
    sync       = sync_s, for any number of samplers
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from rl.planning.costs import Costs
from rl.planning.recorded import Group, Recorded
from rl.planning.rollouts import Pace, Samplers, Timeline, simulate

GENERATE, ENVIRONMENT, LEARN, SYNC = "generate", "environment", "learn", "sync"
CONTROLLER, TAIL = "controller", "tail"
LOOP_S = 1.25e-3
"""Processor seconds of the event loop for a turn on a vLLM server: 0.319 s for 64 episodes of 4
turns (``benchmarks.serving.rollout_vllm``)."""
RECEIVE_S = 0.25e-3
"""Processor seconds of the run's process for an episode of four turns that a collector played
(``benchmarks.scaling.collectors``)."""
MOST_EPISODES = 512
"""Largest number of episodes of an update that is simulated. A larger update is simulated in part,
with the same share of the samplers."""


@dataclass(frozen=True, slots=True)
class Work:
    """What an update of a recorded run asks for."""

    groups: Sequence[Group]
    learned_tokens: float
    """Mean tokens of the learner for each group."""
    longest_row: float
    """Largest number of tokens of a row."""

    @property
    def group_size(self) -> float:
        """Mean number of episodes in a group."""
        return sum(len(group) for group in self.groups) / max(1, len(self.groups))

    @property
    def environment_s(self) -> float:
        """Mean of the environments' seconds for a group."""
        return fmean(sum(t.env_s for turns in group for t in turns) for group in self.groups)

    @property
    def context(self) -> float:
        """Mean number of tokens before a sampled token."""
        turns = [turn for group in self.groups for episode in group for turn in episode]
        tokens = sum(turn.sampled for turn in turns)
        before = sum(turn.sampled * (turn.context + turn.sampled / 2) for turn in turns)
        return before / tokens if tokens else 0.0

    def changed(self, factor: float, environment_s: float = 0.0) -> Work:
        """The work with ``factor`` times as many tokens in each observation and each answer.

        Args:
            factor: number of tokens, as a multiple of the recorded number.
            environment_s: seconds to add to each answer of the environment.
        """
        if factor == 1 and not environment_s:
            return self
        groups = [
            [[turn.changed(factor, environment_s) for turn in episode] for episode in group]
            for group in self.groups
        ]
        return Work(groups, self.learned_tokens * factor, self.longest_row * factor)


def work_of(recorded: Recorded) -> Work:
    """What a recorded run's updates ask for."""
    groups = recorded.groups
    tokens = sum(step.learned_tokens for step in recorded.steps)
    return Work(groups, tokens / max(1, len(groups)), max(s.longest_row for s in recorded.steps))


@dataclass(frozen=True, slots=True)
class Setup:
    """How a run is placed on GPUs."""

    samplers: int
    """Number of samplers."""
    ranks: int
    """Number of the learner's GPUs."""
    prompts: int
    staleness: int = 0
    slots: int = 64
    micro_batch_tokens: int = 4096
    environments: float = math.inf
    collectors: int = 1
    """Number of processes that play episodes."""
    bandwidth: float = math.inf
    """Bytes a second between the learner's ranks, for each rank."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """The predicted seconds of a step."""

    step_s: float
    parts: dict[str, float]
    """Seconds of generate, environment, controller, learn and sync. Without staleness they add up
    to the step. Otherwise generate and environment add up to the rollouts' lane, without its idle
    time, and the others to the learner's lane, without its wait."""
    wait_s: float
    """Seconds in which the learner waits for episodes."""
    tail_s: float
    """Seconds in which less than half of the rows of the fullest instant decode."""
    idle_s: float
    """Seconds in which no episode is under way."""
    loop_s: float
    """Seconds of an event loop that plays all episodes of a step."""
    tokens: float
    """Sampled tokens of a step."""
    environment_s: float
    """Sum of the environments' seconds over all episodes."""
    rows: float
    """Mean number of rows of a decoding step of a sampler."""
    gathers: bool
    """Whether the learner's ranks wait for weights longer than they compute."""
    row_bound: bool
    """Whether the longest row takes longer than an equal share of the tokens."""
    ahead: bool
    """Whether episodes are played ahead of the learner."""

    @property
    def bottleneck(self) -> str:
        """The part that bounds the step. Tail: the rollouts wait for the last episodes."""
        lanes = dict(self.parts)
        if self.ahead and self.idle_s < self.wait_s:
            # The learner waits for the rollouts, and not the rollouts for the learner.
            lanes = {k: v for k, v in lanes.items() if k not in (LEARN, SYNC)}
        elif self.ahead:
            lanes = {k: v for k, v in lanes.items() if k not in (GENERATE, ENVIRONMENT)}
        part = max(lanes, key=lambda name: lanes[name])
        return TAIL if part == GENERATE and self.tail_s > lanes[part] / 2 else part


def predict(work: Work, costs: Costs, setup: Setup) -> StepTime:
    """The mean seconds of a step."""
    episodes = work.group_size * setup.prompts
    controller_s = costs.episode_s * episodes
    learn = learning(work, costs, setup)
    pace = Pace(
        setup.prompts,
        setup.staleness,
        learn.seconds,
        costs.sync_s,
        controller_s,
        setup.environments,
    )
    samplers = Samplers(
        costs.step_s, costs.row_s, costs.prefill_s, setup.slots, float(setup.samplers)
    )
    timeline = _simulated(work.groups, samplers, pace, episodes)
    states = timeline.rollout
    turns = fmean(len(episode) for group in work.groups for episode in group)
    loop_s = _loop_s(turns, setup.collectors) * episodes
    # Beside the learner, the event loop has the whole step; otherwise it has the rollouts' time.
    over_s = max(0.0, loop_s - (timeline.step_s if setup.staleness else timeline.wait_s))
    parts = {
        GENERATE: states["generate"] + states["queue"],
        ENVIRONMENT: states["environment"],
        CONTROLLER: controller_s + over_s,
        LEARN: learn.seconds,
        SYNC: costs.sync_s,
    }
    return StepTime(
        step_s=timeline.step_s + over_s,
        parts=parts,
        wait_s=timeline.wait_s + over_s,
        tail_s=timeline.tail_s,
        idle_s=states["idle"],
        loop_s=_loop_s(turns, 1) * episodes,
        tokens=timeline.tokens,
        environment_s=setup.prompts * work.environment_s,
        rows=timeline.rows,
        gathers=learn.gather_s > learn.compute_s,
        row_bound=learn.row_bound,
        ahead=setup.staleness > 0,
    )


def _loop_s(turns: float, collectors: int) -> float:
    """Seconds of the fullest event loop for each episode of the run."""
    if collectors == 1:
        return LOOP_S * turns
    return max(LOOP_S * turns / collectors, RECEIVE_S)


@dataclass(frozen=True, slots=True)
class Learning:
    """The seconds of an update, by what the ranks do."""

    fixed_s: float
    compute_s: float
    """Seconds of the fullest rank."""
    gather_s: float
    """Seconds in which the ranks receive weights. The ranks compute at the same time."""
    reduce_s: float
    """Seconds in which the ranks add up gradients."""
    row_bound: bool
    """Whether the longest row takes longer than an equal share of the tokens."""

    @property
    def seconds(self) -> float:
        """Seconds of the update."""
        return self.fixed_s + max(self.compute_s, self.gather_s) + self.reduce_s


def learning(work: Work, costs: Costs, setup: Setup) -> Learning:
    """An update on ``setup.ranks`` GPUs."""
    tokens = work.learned_tokens * setup.prompts
    row = min(work.longest_row, tokens)
    # Rows are divided among the ranks by cost, but no row is divided.
    share = max(tokens / setup.ranks, row)
    compute_s = costs.learn_token_s * share
    others = 1 - 1 / setup.ranks
    passes = max(1, math.ceil(share / max(1.0, setup.micro_batch_tokens, row)))
    weights_s = 4 * costs.parameters * others / setup.bandwidth
    return Learning(
        costs.learn_fixed_s, compute_s, passes * weights_s, weights_s, row > tokens / setup.ranks
    )


def _simulated(
    groups: Sequence[Group], samplers: Samplers, pace: Pace, episodes: float
) -> Timeline:
    """The simulated steps. A large update is simulated in part, with its share of the samplers."""
    part = max(1.0, min(episodes / MOST_EPISODES, samplers.count, pace.prompts))
    prompts = max(1, round(pace.prompts / part))
    part = pace.prompts / prompts
    timeline = simulate(
        groups,
        replace(samplers, count=max(1.0, samplers.count / part)),
        replace(pace, prompts=prompts, environments=max(1.0, pace.environments / part)),
    )
    return replace(timeline, tokens=timeline.tokens * part)
