"""Simulation of a run's steps from recorded episodes: who waits for whom, and how long.

The samplers decode in steps: each step gives one token to every row. A step with ``b`` rows takes
``step_s + row_s * b`` seconds, and a prompt token takes ``prefill_s``, in which the rows of its
sampler wait. Rows are spread evenly over the samplers. A request without a free row waits, the
oldest first. The environment answers a turn after its recorded seconds.

Groups start by the capacity law of :mod:`rl.rollout.async_rollouts`: group ``k`` starts when ``k //
prompts - staleness`` updates are done. The learner takes the oldest finished groups, learns, and
sends the weights, while the samplers wait.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf

from rl.planning.recorded import Group, PlayedTurn


@dataclass(frozen=True, slots=True)
class Samplers:
    """Samplers that share all episodes evenly."""

    step_s: float
    """Seconds of a decoding step, besides its rows."""
    row_s: float
    """Seconds that each row adds to a decoding step."""
    prefill_s: float
    """Seconds of a prompt token."""
    slots: int
    """Maximum number of rows of a sampler."""
    count: float = 1.0
    """Number of samplers. A simulation of a part of a large run may have a fraction."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What bounds the steps besides the samplers.

    The learner's seconds are numbers of a whole update.
    """

    prompts: int
    """Number of groups of an update."""
    staleness: int = 0
    learn_s: float = 0.0
    sync_s: float = 0.0
    other_s: float = 0.0
    """Seconds between the end of sampling and the start of learning."""
    environments: float = inf
    """Maximum number of environments that answer at the same time."""


@dataclass(slots=True)
class Timeline:
    """Mean seconds of an update, and the seconds of each state.

    The states of the rollouts share an instant as in the ledger: equally among the episodes under
    way.
    """

    step_s: float
    rollout: dict[str, float]
    """Seconds in ``generate``, ``queue``, ``environment`` and ``idle``."""
    wait_s: float
    """Seconds in which the learner waited for episodes."""
    tail_s: float
    """Seconds in which less than half as many rows decoded as in the update's fullest instant."""
    tokens: float
    """Sampled tokens of an update."""
    rows: float
    """Mean number of rows of a decoding step of a sampler."""


@dataclass(slots=True)
class Exposure:
    """What the samplers did between a request and its answer, for the fit of their costs."""

    steps: float
    rows: float
    """Sum of the rows of these steps."""
    prefill: float
    simulated_s: float
    recorded_s: float


@dataclass(slots=True)
class _Playing:
    """An episode under way."""

    turns: Sequence[PlayedTurn]
    group: int
    turn: int = 0
    asked: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)


@dataclass(slots=True)
class _Clock:
    """The samplers' counters: decoding steps, rows of these steps, prompt tokens."""

    now: float = 0.0
    steps: float = 0.0
    rows: float = 0.0
    prefill: float = 0.0
    pending: float = 0.0
    """Prompt tokens of a sampler that must be computed before the next decoding step."""
    stalled_s: float = 0.0
    """Seconds for which the samplers load weights."""


@dataclass
class Rollouts:
    """Episodes on samplers and in environments. Time passes with :meth:`advance`."""

    samplers: Samplers
    environments: float = inf
    clock: _Clock = field(default_factory=_Clock)
    exposures: list[Exposure] = field(default_factory=list)
    """An entry for each finished request, in the order of their ends."""
    ended: list[Sequence[PlayedTurn]] = field(default_factory=list)
    """The episodes of these requests."""

    def __post_init__(self) -> None:
        self._order = count()
        self._decoding: list[tuple[float, int, _Playing]] = []
        """Heap of the rows by the number of the decoding step that ends their turn."""
        self._later: list[tuple[float, int, bool, _Playing]] = []
        """Heap of the ends of prompts (True) and of the environment's answers (False)."""
        self._queue: deque[_Playing] = deque()
        self._waiting: deque[_Playing] = deque()
        """Episodes whose environment waits."""
        self._num_prompts = self._num_environments = 0
        self._left: dict[int, int] = {}
        """Number of unfinished episodes of each group."""
        self.finished: list[int] = []
        """The finished groups that no update has taken, in the order of their ends."""
        self.states = {"generate": 0.0, "queue": 0.0, "environment": 0.0, "idle": 0.0}
        self.occupied: list[tuple[float, int]] = []
        """Seconds and number of decoding rows of each interval."""
        self.tokens = 0

    def start(self, number: int, group: Group) -> None:
        """Start the episodes of a group."""
        self._left[number] = len(group)
        for turns in group:
            if turns:
                self._ask(_Playing(turns, number))
            else:
                self._end(_Playing(turns, number))
        if not group:
            self.finished.append(number)

    def load_weights(self, seconds: float) -> None:
        """Stop the samplers for ``seconds``. Rows then compute their context again."""
        self.clock.stalled_s += seconds
        running = [one for *_, one in self._decoding]
        context = sum(one.turns[one.turn].context for one in running)
        self.clock.pending += context / self.samplers.count

    def advance(self, until: float) -> None:
        """Let time pass to the next event, or to ``until`` if that comes first."""
        clock, rows = self.clock, len(self._decoding)
        samplers = self.samplers
        b = max(1.0, rows / samplers.count)
        each_s = samplers.step_s + samplers.row_s * b
        blocked_s = clock.stalled_s + clock.pending * samplers.prefill_s
        ends = inf
        if rows:
            ends = clock.now + blocked_s + (self._decoding[0][0] - clock.steps) * each_s
        later = self._later[0][0] if self._later else inf
        at = max(clock.now, min(ends, later, until))
        if at == inf:
            raise ValueError("no episode is under way")
        self._pass(at - clock.now, rows, b, each_s)
        clock.now = at
        if rows and ends <= min(later, until):
            clock.steps = max(clock.steps, self._decoding[0][0])
            self._answered(heapq.heappop(self._decoding)[2])
        elif self._later and later <= until:
            _, _, prompt, one = heapq.heappop(self._later)
            if prompt:
                self._num_prompts -= 1
                self._decode(one)
            else:
                self._replied(one)

    @property
    def busy(self) -> bool:
        """Whether an episode is under way."""
        return bool(self._decoding or self._later or self._queue)

    def _pass(self, seconds: float, rows: int, b: float, each_s: float) -> None:
        clock = self.clock
        asking = rows + self._num_prompts
        replying = self._num_environments + len(self._waiting)
        parts = {"generate": asking, "queue": len(self._queue), "environment": replying}
        total = sum(parts.values())
        if total:
            for state, number in parts.items():
                self.states[state] += seconds * number / total
        else:
            self.states["idle"] += seconds
        self.occupied.append((seconds, rows))
        stalled = min(seconds, clock.stalled_s)
        clock.stalled_s -= stalled
        seconds -= stalled
        # Without rows, prompts still pass: the next row does not wait for them again.
        prefill_s = self.samplers.prefill_s
        prompts = clock.pending if not prefill_s else min(clock.pending, seconds / prefill_s)
        clock.pending -= prompts
        clock.prefill += prompts
        seconds -= prompts * prefill_s
        if rows and each_s:
            clock.steps += seconds / each_s
            clock.rows += seconds / each_s * b

    def _ask(self, one: _Playing) -> None:
        clock = self.clock
        one.asked = (clock.now, clock.steps, clock.rows, clock.prefill)
        self._queue.append(one)
        self._admit()

    def _admit(self) -> None:
        most = self.samplers.slots * self.samplers.count
        while self._queue and len(self._decoding) + self._num_prompts + 1 <= max(1.0, most):
            one = self._queue.popleft()
            prompt = one.turns[one.turn].prefill
            # The prompt stops the rows of one sampler, and its own row starts after it.
            self.clock.pending += prompt / self.samplers.count
            own_s = prompt * self.samplers.prefill_s
            if own_s > 0:
                self._num_prompts += 1
                at = self.clock.now + own_s
                heapq.heappush(self._later, (at, next(self._order), True, one))
            else:
                self._decode(one)

    def _decode(self, one: _Playing) -> None:
        end = self.clock.steps + one.turns[one.turn].sampled
        heapq.heappush(self._decoding, (end, next(self._order), one))

    def _answered(self, one: _Playing) -> None:
        clock, (began, steps, rows, prefill) = self.clock, one.asked
        passed = (clock.steps - steps, clock.rows - rows, clock.prefill - prefill)
        turn = one.turns[one.turn]
        self.exposures.append(Exposure(*passed, clock.now - began, turn.generate_s))
        self.ended.append(one.turns)
        self.tokens += turn.sampled
        self._waiting.append(one)
        self._reply()
        self._admit()

    def _reply(self) -> None:
        while self._waiting and self._num_environments + 1 <= max(1.0, self.environments):
            one = self._waiting.popleft()
            self._num_environments += 1
            at = self.clock.now + one.turns[one.turn].env_s
            heapq.heappush(self._later, (at, next(self._order), False, one))

    def _replied(self, one: _Playing) -> None:
        self._num_environments -= 1
        one.turn += 1
        if one.turn < len(one.turns):
            self._ask(one)
        else:
            self._end(one)
        self._reply()

    def _end(self, one: _Playing) -> None:
        self._left[one.group] -= 1
        if self._left[one.group] == 0:
            self.finished.append(one.group)


def simulate(
    groups: Sequence[Group], samplers: Samplers, pace: Pace, *, updates: int = 0
) -> Timeline:
    """The mean step of a run that plays ``groups`` again and again.

    Args:
        groups: recorded groups.
        samplers: the samplers.
        pace: the learner and the environments.
        updates: number of updates to average; 0: as many as ``groups`` fill, but at least 6 with
            staleness. With staleness, updates before the steady state are left out.
    """
    ahead, first = pace.staleness, warm_up(pace.staleness)
    filled = max(1, len(groups) // pace.prompts)
    updates = updates or (max(6, filled) if ahead else filled)
    rollouts = Rollouts(samplers, pace.environments)
    wait = start = 0.0
    began = 0.0, 0.0
    begun_at: dict[int, int] = {}
    """For each group that no update has taken, the number of updates that were done at its
    start."""
    number = 0
    for done in range(first + updates):
        if done == first:
            _restart(rollouts)
            start, wait = rollouts.clock.now, 0.0
            began = rollouts.clock.steps, rollouts.clock.rows
        while number < (done + ahead + 1) * pace.prompts:
            begun_at[number] = done
            rollouts.start(number, groups[number % len(groups)])
            number += 1
        asked = rollouts.clock.now
        seen, taken = -1, None
        while taken is None:
            if seen != (seen := len(rollouts.finished)):
                taken = _chosen(rollouts.finished, begun_at, pace, done)
            else:
                rollouts.advance(inf)
        wait += rollouts.clock.now - asked
        for group in taken:
            rollouts.finished.remove(group)
            del begun_at[group]
        _idle(rollouts, pace.other_s + pace.learn_s)
        rollouts.load_weights(pace.sync_s)
        _idle(rollouts, pace.sync_s)
    total = rollouts.clock.now - start
    return Timeline(
        step_s=total / updates,
        rollout={state: seconds / updates for state, seconds in rollouts.states.items()},
        wait_s=wait / updates,
        tail_s=_tail(rollouts.occupied) / updates,
        tokens=rollouts.tokens / updates,
        rows=_ratio(rollouts.clock.rows - began[1], rollouts.clock.steps - began[0]),
    )


def requests(groups: Sequence[Group], samplers: Samplers) -> tuple[list[Exposure], Exposure]:
    """What the samplers did during each request of a synchronous step, and in the whole step."""
    rollouts = Rollouts(samplers)
    for number, group in enumerate(groups):
        rollouts.start(number, group)
    while rollouts.busy:
        rollouts.advance(inf)
    clock = rollouts.clock
    return rollouts.exposures, Exposure(clock.steps, clock.rows, clock.prefill, clock.now, 0.0)


def warm_up(staleness: int) -> int:
    """Number of first updates that are left out, because episodes started all at once."""
    return 4 * staleness + 2 if staleness else 0


def _chosen(
    finished: Sequence[int], begun_at: Mapping[int, int], pace: Pace, done: int
) -> list[int] | None:
    """The groups of the next update, or None if it must wait; see ``GroupStream``."""
    if len(finished) < pace.prompts:
        return None
    chosen = sorted(finished, key=begun_at.__getitem__)[: pace.prompts]
    for later in range(pace.staleness + 1):
        by = done - pace.staleness + later
        left = sum(at <= by for at in begun_at.values())
        left -= sum(begun_at[group] <= by for group in chosen)
        if left > later * pace.prompts:
            return None
    return chosen


def _idle(rollouts: Rollouts, seconds: float) -> None:
    """Let ``seconds`` pass, in which episodes that are played ahead continue."""
    end = rollouts.clock.now + seconds
    while rollouts.clock.now < end:
        rollouts.advance(end)


def _restart(rollouts: Rollouts) -> None:
    """Set the counters of seconds and tokens to 0."""
    rollouts.states = dict.fromkeys(rollouts.states, 0.0)
    rollouts.occupied, rollouts.tokens = [], 0


def _tail(occupied: Sequence[tuple[float, int]]) -> float:
    most = max((rows for _, rows in occupied), default=0)
    return sum(seconds for seconds, rows in occupied if 0 < 2 * rows < most)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
