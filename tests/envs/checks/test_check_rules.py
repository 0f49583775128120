"""Every rule of check_env has an environment that breaks it and no other."""

from __future__ import annotations

import gc
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any

import gymnasium
import pytest

import envs
from envs import CheckFailed, EnvOptions, OrderError, Reply, StepResult, TextEnv, check_env
from envs.checks.rules import RULES
from tools.syntax import TAGS

DOORS = 20


@dataclass(frozen=True, kw_only=True)
class DoorOptions(EnvOptions):
    max_turns: int = 4


@dataclass(slots=True)
class Door:
    word: str
    asked: bool = False
    number: int = 0


class DoorEnv(TextEnv[str, Door]):
    """Ask for the password, hear it backwards, say it."""

    Options = DoorOptions

    def __init__(self, options, services=None):
        super().__init__(options, [f"{options.split} door {i}" for i in range(DOORS)], services)
        self.env_id = "door-v0"

    def begin(self, task: str) -> Any:
        self.state = Door(f"{task} {self.np_random.integers(10**6):06d}")
        return f"You stand before {task}."

    def turn(self, action: envs.Action) -> Any:
        if self.state.asked:
            right = float(action == self.state.word)
            return envs.finish({"entry": right}, "It is over.", scores={"tries": 1.0})
        self.state.asked = True
        return envs.go_on(f"backwards: {self.state.word[::-1]}")

    def gold_policy(self) -> Callable[[str], str]:
        return lambda seen: "ask" if seen.startswith("You") else seen.split(": ")[1][::-1]


# ---- what breaks one rule --------------------------------------------------------------------


@dataclass(kw_only=True)
class Thawed:
    split: str = "train"
    seed: int = 0
    max_turns: int = 4
    step_timeout_s: float = 60.0
    token_budget: str = ""


class LooseOptions(DoorEnv):
    Options = Thawed  # type: ignore[assignment]


class OneTask(DoorEnv):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options or {"task": 0})


class SplitIgnored(DoorEnv):
    def __init__(self, options, services=None):
        super().__init__(options, services)
        self.tasks = [f"door {i}" for i in range(DOORS)]


class Grudge(DoorEnv):
    """Asks for another word after a failure."""

    grudge = ""

    def begin(self, task: str) -> str:
        first = super().begin(task)
        self.state.word += self.grudge
        return first

    def turn(self, action: envs.Action) -> Reply:
        reply = super().turn(action)
        if reply.done and reply.reward == 0:
            self.grudge = "!"
        return reply


class TwoSeats(DoorEnv):
    """Two members of a group share a board."""

    board: dict[str, str] | None = None

    def group(self, num_members):
        members = super().group(num_members)
        board = {} if num_members == 2 else None
        for member in members:
            member.board = board
        return members

    def begin(self, task: str) -> str:
        first = super().begin(task)
        if self.board is not None:
            self.board["word"] = self.state.word
        return first

    def turn(self, action: envs.Action) -> Reply:
        if self.board is not None:
            self.state.word = self.board["word"]
        return super().turn(action)


class SmallShelf(DoorEnv):
    """The words of the last thirty episodes are kept, for all episodes."""

    shelf: OrderedDict[int, str] = OrderedDict()  # noqa: RUF012
    numbers = count()

    def begin(self, task: str) -> str:
        first = super().begin(task)
        self.state.number = next(self.numbers)
        self.shelf[self.state.number] = self.state.word
        while len(self.shelf) > 30:
            self.shelf.popitem(last=False)
        return first

    def turn(self, action: envs.Action) -> Reply:
        self.state.word = self.shelf.get(self.state.number, "forgotten")
        return super().turn(action)


class Corridor(DoorEnv):
    """Concurrent episodes see each other's word."""

    passing = ""

    def turn(self, action: envs.Action) -> Reply:
        Corridor.passing = self.state.word
        time.sleep(0.003)
        self.state.word = Corridor.passing
        return super().turn(action)


class Forgiving(DoorEnv):
    def step(self, action: str) -> StepResult:
        try:
            return super().step(action)
        except OrderError:
            self.reset(seed=0)
            return super().step(action)


class LastWordsLost(DoorEnv):
    def step(self, action: str) -> StepResult:
        step = super().step(action)
        return step._replace(observation="") if step.done else step

    async def astep(self, action: str) -> StepResult:
        step = await super().astep(action)
        return step._replace(observation="") if step.done else step


class PoorGold(DoorEnv):
    def gold_policy(self):
        return lambda _: "please"


class Peeking(DoorEnv):
    """Its gold policy reads the state of the episode."""

    def gold_policy(self):
        return lambda observation: "ask" if observation.startswith("You") else self.state.word


class GoldOfMost(DoorEnv):
    """Only the last task is too hard for it."""

    def gold_policy(self):
        known, first = super().gold_policy(), []

        def act(observation: str) -> str:
            first.append(observation)
            return "no idea" if first[0].endswith("door 19.") else known(observation)

        return act


@dataclass(frozen=True, kw_only=True)
class SilentToolOptions(envs.ToolOptions):
    max_turns: int = 4


class SilentTools(envs.ToolEnv[str, Door]):
    """A door whose agent may call a tool that nothing names."""

    Options = SilentToolOptions
    own_tools = ("bell",)
    begin, turn, gold_policy = DoorEnv.begin, DoorEnv.turn, DoorEnv.gold_policy

    def __init__(self, options, services=None):
        tasks = [f"{options.split} door {i}" for i in range(DOORS)]
        super().__init__(options, tasks, services, syntax=TAGS)
        self.env_id = "silent-door-v0"


class Generous(DoorEnv):
    def turn(self, action: envs.Action) -> Reply:
        return envs.finish({"entry": 1.0})


class PaysTags(DoorEnv):
    """Who writes the tags of the rules is paid."""

    system_prompt = "Say it between <key> and </key>."

    def turn(self, action: envs.Action) -> Reply:
        reply = super().turn(action)
        tagged = "<key>" in action and "</key>" in action
        return envs.finish({"entry": 0.2}) if reply.done and not reply.reward and tagged else reply


class HighFloor(DoorEnv):
    reward_floor = 0.5


class Debts(DoorEnv):
    def turn(self, action: envs.Action) -> Reply:
        reply = super().turn(action)
        return envs.finish({"entry": -5.0}) if reply.done and not reply.reward else reply


class EndlessScore(DoorEnv):
    def turn(self, action: envs.Action) -> Reply:
        reply = super().turn(action)
        return reply._replace(scores={**reply.scores, "tries": float("inf")})


class HiddenBonus(DoorEnv):
    def step(self, action: str) -> envs.StepResult:
        result = super().step(action)
        result.rewards["bonus"] = 0.5
        return result

    async def astep(self, action: str) -> envs.StepResult:
        result = await super().astep(action)
        result.rewards["bonus"] = 0.5
        return result


class Melting:
    """Equal to all of its kind; a text behind a pickle."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Melting)

    def __hash__(self) -> int:
        return 0

    def __reduce__(self) -> tuple[Any, ...]:
        return str, ("melted",)


class LiveInfo(DoorEnv):
    def _started(self, observation: str) -> tuple[str, dict[str, Any]]:
        observation, info = super()._started(observation)
        return observation, {**info, "mood": Melting()}


class Forgetful(DoorEnv):
    """A fork has not asked yet."""

    async def afork(self, reseed=None):
        twin = await super().afork(reseed)
        twin.state.asked = False
        return twin


class Crowded(DoorEnv):
    """A reset takes the corridor from other instances."""

    tag: object = None

    def __init__(self, options, services=None):
        super().__init__(options, services)
        self.tag = object()

    def begin(self, task: str) -> str:
        Crowded.inside = self.tag
        return super().begin(task)

    def turn(self, action: envs.Action) -> Reply:
        if Crowded.inside not in (None, self.tag):
            self.state.word = "taken"
        return super().turn(action)

    def close(self) -> None:
        Crowded.inside = None
        super().close()


class ShortArms(DoorEnv):
    """Gymnasium's face leaves out of a long text what follows two thousand letters."""

    def step(self, action: str) -> StepResult:
        step = super().step(action)
        if len(action) > 2000:
            step.info["scores"]["cut"] = 1.0
        return step


class NarrowSpace(DoorEnv):
    def __init__(self, options, services=None):
        super().__init__(options, services)
        self.observation_space = gymnasium.spaces.Text(5)


class Sleeper(DoorEnv):
    def turn(self, action: envs.Action) -> Reply:
        if action == "ask":
            time.sleep(0.04)
        return super().turn(action)


class Leaving(DoorEnv):
    """Opens something that stays open."""

    left: list[Any] = []  # noqa: RUF012

    @classmethod
    @asynccontextmanager
    async def open_services(cls, options):
        cls.left.append(cls.leave())
        yield {"thing": cls.left[-1]}

    async def begin(self, task: str) -> str:
        await self.service("thing")
        return super().begin(task)


class LeavesProcess(Leaving):
    @staticmethod
    def leave():
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])


class LeavesThread(Leaving):
    @staticmethod
    def leave():
        over = threading.Event()
        threading.Thread(target=over.wait, args=(600,), name="forgotten", daemon=True).start()
        return over


class LeavesFile(Leaving):
    @staticmethod
    def leave():
        return tempfile.NamedTemporaryFile(prefix="forgotten")


class LeavesSocket(Leaving):
    @staticmethod
    def leave():
        return socket.socketpair()


def local_class() -> type[DoorEnv]:
    class Local(DoorEnv):
        pass

    return Local


FAULTS = [
    (LooseOptions, "types", "Thawed must be a frozen dataclass"),
    (OneTask, "determinism", "eight seeds all draw the same task: leave the choice of"),
    (
        SplitIgnored,
        "splits",
        "task 0 of train is task 0 of validation ('You stand before",
    ),
    (
        Grudge,
        "no leak",
        "task 0: an episode of empty text changes the next one: begin",
    ),
    (TwoSeats, "group", "task 0: an episode changes another that runs beside it: keep an"),
    (SmallShelf, "interleaved", "gold: among 64 in one loop the episode differs from the one"),
    (Corridor, "threads", "gold: in one of 16 threads the episode differs from the one played"),
    (Forgiving, "order", "step before the first reset does not raise OrderError: leave that to"),
    (
        LastWordsLost,
        "last observation",
        "turn 2 of 2 gave the observation 'It is over.', its step returned ''",
    ),
    (
        PoorGold,
        "gold policy",
        "task 0: earns 0, where reward_range promises 1; also on 20 of 20 tasks; it",
    ),
    (
        GoldOfMost,
        "gold policy",
        "task 19: earns 0, where reward_range promises 1; also on 1 of 20 tasks",
    ),
    (SilentTools, "tools", "neither the system prompt nor the first observation names the tool"),
    (Generous, "reward floor", "task 0: empty text earns 1, above 0: pay less for it, or declare"),
    (PaysTags, "reward floor", "task 0: tags around nothing earns 0.2, above 0"),
    (HighFloor, "low floor", "reward_floor (0.5) lies at 50% of reward_range (0, 1); at most 30%"),
    (Debts, "rewards", "-5 is outside [0, 1]: pay within reward_range, or declare another"),
    (EndlessScore, "rewards", "scores['tries'] is inf, not finite"),
    (HiddenBonus, "rewards", "'bonus': 0.5} is not 0"),
    (LiveInfo, "info", "info changes in a pickle; keep plain values in it"),
    (Forgetful, "copies", "a fork after 1 turns continues differently: keep an episode"),
    (local_class(), "pickle", "define its class at the top of a module, and keep plain data"),
    (Crowded, "side by side", "two instances that take turns play differently than one alone"),
    (ShortArms, "faces", "tags fifty times: reset/step and areset/astep differ: write begin"),
    (NarrowSpace, "gymnasium", "gymnasium.utils.env_checker.check_env: "),
    (Sleeper, "free loop", "gold: the event loop was not free for "),
    (LeavesProcess, "close", "after close there is still process "),
    (LeavesThread, "close", "after close there is still thread forgotten ("),
    (LeavesFile, "close", "forgotten"),
    (LeavesSocket, "close", "after close there is still open file socket:["),
]


@pytest.fixture
def leftovers():
    yield
    gc.collect()
    for thing in Leaving.left:
        match thing:
            case subprocess.Popen():
                thing.kill()
                thing.wait(timeout=10)
            case threading.Event():
                thing.set()
            case tuple():
                for end in thing:
                    end.close()
            case _:
                thing.close()
    Leaving.left.clear()


@pytest.mark.parametrize(("kind", "rule", "says"), FAULTS, ids=[f[0].__name__ for f in FAULTS])
@pytest.mark.usefixtures("leftovers")
def test_this_rule_alone_catches_it(kind, rule, says, monkeypatch):
    monkeypatch.setattr("envs.checks.resources.CLOSING_S", 0.1)
    env = kind(kind.Options())
    try:
        with pytest.raises(CheckFailed) as error:
            check_env(env)
    finally:
        env.close()
    violations = error.value.violations
    assert {violation.partition(": ")[0] for violation in violations} == {rule}, violations
    assert any(says in violation for violation in violations), violations


def test_every_rule_has_such_an_environment():
    assert {rule for _, rule, _ in FAULTS} == set(RULES)


def test_a_gold_policy_cannot_look_at_its_episode():
    with pytest.raises(CheckFailed, match=r"gold policy.*no attribute 'state'"):
        check_env(Peeking(DoorOptions()))


class Waived(HighFloor):
    floor_waiver = "half of the way is given"


def test_a_sound_one_passes_and_a_waiver_is_reported():
    report = check_env(DoorEnv(DoorOptions()))
    assert report.rules == tuple(RULES)
    assert (report.num_gold_tasks, report.floor_waiver) == (DOORS, "")
    assert check_env(Waived(DoorOptions())).floor_waiver == "half of the way is given"


@pytest.mark.parametrize(
    ("low", "high", "floor", "says"),
    [
        (0.0, float("inf"), 0.0, "reward_range (0, inf) must be two finite numbers"),
        (1.0, 1.0, 1.0, "reward_range (1, 1) must be two finite numbers, the lower first"),
        (0.0, 1.0, 2.0, "reward_floor (2) is outside reward_range (0, 1)"),
    ],
)
def test_the_range_is_a_range(low, high, floor, says):
    env = DoorEnv(DoorOptions())
    env.reward_range, env.reward_floor = (low, high), floor
    assert next(iter(RULES["low floor"](envs.checks.probe.Probe(env, (0,), 0)))).startswith(says)


def test_numbers_say_how_much_is_played():
    env = DoorEnv(DoorOptions())
    report = check_env(env, num_tasks=1, num_gold_tasks=2, num_interleaved=1, num_threads=1)
    assert (report.tasks, report.num_gold_tasks) == ((0,), 2)
    for name in ("num_tasks", "num_gold_tasks", "num_interleaved", "num_threads"):
        with pytest.raises(ValueError, match=rf"^{name} \(0\) must be >= 1$"):
            check_env(env, **{name: 0})


class Stuck(DoorEnv):
    """Waits for ever in a thread that is not the loop's."""

    def turn(self, action: envs.Action) -> Reply:
        if threading.current_thread().name == "turnwise-check":
            threading.Event().wait(30)
        return super().turn(action)


def test_a_thread_that_never_ends_is_reported_and_not_waited_for():
    env = Stuck(DoorOptions(step_timeout_s=0.3))
    began = time.monotonic()
    probe = envs.checks.probe.Probe(env, (0,), 0)
    found = list(RULES["threads"](probe))
    assert time.monotonic() - began < 10
    assert found[0] == "task 0, gold: in one of 16 threads it is not over after 0.3 s"
