"""check_env finds what it says it finds: one broken environment per rule."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import envs
from envs import CheckFailed, EnvOptions, OrderError, Reply, TextEnv, check_env, finish, go_on
from envs.checks.probe import Probe, Strength, global_generators
from envs.checks.resources import MAX_TRIES
from envs.checks.rules import RULES


@dataclass(frozen=True, kw_only=True)
class PasswordOptions(EnvOptions):
    max_turns: int = 3


@dataclass(slots=True)
class Password:
    word: str
    asked: bool = False


class PasswordEnv(TextEnv[str, Password]):
    """Ask for the password, which the episode's generator decides, and say it."""

    Options = PasswordOptions

    def __init__(self, options: PasswordOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, [f"{options.split} door {i}" for i in range(20)], services)
        self.env_id = "password-v0"

    def begin(self, task: str) -> str:
        self.state = Password(f"{task} {self.np_random.integers(10**6):06d}")
        return f"You stand before {task}."

    def turn(self, action: envs.Action) -> Reply:
        if self.state.asked:
            return finish({"entry": float(action == self.state.word)}, "", scores={"tries": 1.0})
        self.state.asked = True
        return go_on(self.state.word)

    def gold_policy(self) -> Callable[[str], str]:
        return lambda observation: "ask" if observation.startswith("You") else observation


def check(kind: type[PasswordEnv], **options: Any) -> envs.CheckReport:
    env = kind(kind.Options(**options))
    try:
        return check_env(env)
    finally:
        env.close()


def broken(kind: type[PasswordEnv], **options: Any) -> dict[str, list[str]]:
    """Rule -> findings."""
    with pytest.raises(CheckFailed) as error:
        check_env(kind(PasswordOptions()), **options)
    assert all(violation in str(error.value) for violation in error.value.violations)
    return by_rule(error.value)


def by_rule(error: CheckFailed) -> dict[str, list[str]]:
    """Rule -> findings; a finding of many rules is each one's."""
    found: dict[str, list[str]] = {}
    for violation in error.violations:
        rules, _, finding = violation.partition(": ")
        for rule in rules.split(", "):
            found.setdefault(rule, []).append(finding)
    return found


# The policy that repeats the observation would be gold here, so "many words" stands for spam.
class ParrotProof(PasswordEnv):
    """The password is shown backwards, so that repeating what was said does not open the door."""

    def turn(self, action: envs.Action) -> Reply:
        reply = super().turn(action)
        return reply if reply.done else go_on(f"backwards: {self.state.word[::-1]}")

    def gold_policy(self) -> Callable[[str], str]:
        return lambda observation: (
            "ask" if observation.startswith("You") else observation.split(": ")[1][::-1]
        )


def test_a_sound_environment_passes():
    report = check(ParrotProof)
    assert report.env_id == "password-v0"
    assert report.rules == tuple(RULES)
    assert report.tasks == (0, 6, 13)
    assert 0 <= report.longest_block_s < 0.1


def test_tasks_are_spread_and_never_repeated():
    env = ParrotProof(PasswordOptions())
    assert check_env(env, num_tasks=100).tasks == tuple(range(20))
    with pytest.raises(ValueError, match=r"num_tasks \(0\)"):
        check_env(env, num_tasks=0)


def test_parroting_is_spam():
    found = broken(PasswordEnv)
    assert set(found) == {"reward floor"}
    (finding,) = found["reward floor"]
    assert "the observation repeated earns 1, above 0" in finding
    assert finding.endswith(" (and so 2 more)"), "three tasks, said once"


class TwoFaults(PasswordEnv):
    reward_range = (0.0, 2.0)


def test_everything_wrong_is_in_one_message():
    found = broken(TwoFaults)
    assert set(found) == {"reward floor", "gold policy"}


class Stuck(ParrotProof):
    """An episode of another split waits until it is let go."""

    let_go = threading.Event()

    def begin(self, task: Any) -> str:
        if self.options.split == "validation":
            self.let_go.wait(120)
        return super().begin(task)


def test_a_rule_that_does_not_end_is_named_and_ends_the_check():
    try:
        with pytest.raises(CheckFailed) as failed:
            check_env(Stuck(PasswordOptions()), max_rule_s=10)
    finally:
        Stuck.let_go.set()
    (violation,) = failed.value.violations
    assert violation.startswith("splits: not over after 10 s, and the rules after it were not")
    with pytest.raises(ValueError, match=r"max_rule_s \(0\) must be above 0"):
        check_env(ParrotProof(PasswordOptions()), max_rule_s=0)


class TimesOut(ParrotProof):
    def turn(self, action: envs.Action) -> Reply:
        raise TimeoutError("its own")


def test_an_environment_that_raises_a_timeout_of_its_own_is_no_slow_rule():
    found = broken(TimesOut)
    assert any("its own" in text for findings in found.values() for text in findings)
    assert not any("not over" in text for findings in found.values() for text in findings)


# ---- one environment per rule ----------------------------------------------------------------


class MutableOptions(ParrotProof):
    def __init__(self, options: Any, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(PasswordOptions(), services)
        self.options = {"max_turns": 3}  # type: ignore[assignment]


class NeedsMore(ParrotProof):
    def __init__(self, options: Any, services: Any = None, *, secret: int) -> None:
        super().__init__(options, services)


class GlobalRandom(ParrotProof):
    def begin(self, task: str) -> str:
        first = super().begin(task)
        self.state.word = f"{task} {random.random()}"
        return first


class GlobalNumpy(ParrotProof):
    def begin(self, task: str) -> str:
        first = super().begin(task)
        self.state.word = f"{task} {np.random.rand()}"
        return first


class GlobalSeed(ParrotProof):
    """Deterministic on its own, and not under threads."""

    def begin(self, task: str) -> str:
        first = super().begin(task)
        random.seed(task)
        self.state.word = f"{task} {random.random()}"
        return first


class SeedDropped(ParrotProof):
    def reset(self, *, seed=None, options=None):
        return super().reset(options=options)

    async def areset(self, *, seed=None, options=None):
        return await super().areset(options=options)


class OneTaskOnly(ParrotProof):
    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed, options=options or {"task": 0})


class SplitIgnored(ParrotProof):
    def __init__(self, options: Any, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, services)
        self.tasks = [f"door {i}" for i in range(20)]


class Shuffled(ParrotProof):
    """Each split in an order of its own, and of another length: one in ten tasks is looked at."""

    def __init__(self, options: Any, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, services)
        doors = random.Random(options.split).sample(
            range(600), {"train": 600}.get(options.split, 400)
        )
        self.tasks = [f"door {i}" for i in doors]


class AsksAtRandom(ParrotProof):
    """Its tasks differ from split to split; what it asks does not follow from them."""

    def begin(self, task: str) -> str:
        super().begin(task)
        return f"You stand before door {self.np_random.integers(10**6)}."


class Mute(SplitIgnored):
    """Its first observation does not distinguish tasks."""

    def begin(self, task: str) -> str:
        super().begin(task)
        return "Password?"


class History(ParrotProof):
    """Never clears what it heard."""

    def __init__(self, options: Any, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, services)
        self.heard = 0

    def turn(self, action: envs.Action) -> Reply:
        self.heard += 1
        reply = super().turn(action)
        return reply if reply.done else go_on(f"{self.heard} backwards: {self.state.word[::-1]}")


class SharedBoard(ParrotProof):
    """Writes its password where every copy of it reads."""

    board: dict[str, str] = {}  # noqa: RUF012

    def begin(self, task: str) -> str:
        first = super().begin(task)
        self.board["word"] = self.state.word
        return first

    def turn(self, action: envs.Action) -> Reply:
        self.state.word = self.board["word"]
        return super().turn(action)


class ForgivesOrder(ParrotProof):
    def step(self, action: str) -> envs.StepResult:
        try:
            return super().step(action)
        except OrderError:
            self.reset(seed=0)
            return super().step(action)


class PoorGold(ParrotProof):
    def gold_policy(self) -> Callable[[str], str]:
        return lambda _: "please"


class LateGold(ParrotProof):
    """Earns everything at the first turn, but is cut at the turn limit."""

    def turn(self, action: envs.Action) -> Reply:
        first, self.state.asked = not self.state.asked, True
        return go_on("", {"entry": float(first and action == "gold")})

    def gold_policy(self) -> Callable[[str], str]:
        return lambda _: "gold"


class NoGold(ParrotProof):
    gold_policy = TextEnv.gold_policy


class Generous(ParrotProof):
    def turn(self, action: envs.Action) -> Reply:
        return finish({"entry": 1.0})


class OutOfRange(ParrotProof):
    def turn(self, action: envs.Action) -> Reply:
        reply = super().turn(action)
        return finish({"entry": -5.0}) if reply.rewards.get("entry") == 0.0 else reply


class DoesNotAddUp(ParrotProof):
    async def astep(self, action: str) -> envs.StepResult:
        step = await super().astep(action)
        step.info["rewards"]["bonus"] = 0.5
        return step

    def step(self, action: str) -> envs.StepResult:
        step = super().step(action)
        step.info["rewards"]["bonus"] = 0.5
        return step


class LiveInfo(ParrotProof):
    def _started(self, observation: str) -> tuple[str, dict[str, Any]]:
        observation, info = super()._started(observation)
        return observation, {**info, "policy": lambda: None}


class Unpicklable(ParrotProof):
    def begin(self, task: str) -> str:
        first = super().begin(task)
        self.state.later = lambda: None  # type: ignore[attr-defined]
        return first


class ShallowFork(ParrotProof):
    """Shares its state with its forks."""

    def turn(self, action: envs.Action) -> Reply:
        reply = super().turn(action)
        if reply.done:
            self.state.word = "said already"
        return reply

    def restore(self, snapshot: envs.Snapshot) -> None:
        super().restore(snapshot)
        self.state = LAST_STATE[0]

    def snapshot(self) -> envs.Snapshot:
        LAST_STATE[:] = [self.state]
        return super().snapshot()


LAST_STATE: list[Any] = []


class SaysItCannotFork(ParrotProof):
    forkable = False

    def snapshot(self) -> envs.Snapshot:
        self.forkable, before = True, self.forkable  # type: ignore[misc]
        try:
            return super().snapshot()
        finally:
            self.forkable = before  # type: ignore[misc]


class TwoFaces(ParrotProof):
    async def astep(self, action: str) -> envs.StepResult:
        step = await super().astep(action)
        return step._replace(observation=step.observation + " ")


class Sleeper(ParrotProof):
    def turn(self, action: envs.Action) -> Reply:
        if action == "ask":
            time.sleep(0.25)
        return super().turn(action)


class ClosesOnceOnly(ParrotProof):
    def close(self) -> None:
        if self._lease is None:
            raise ValueError("closed twice")
        super().close()
        self._lease = None  # type: ignore[assignment]


class OneQuestion(ParrotProof):
    def begin(self, task: str) -> str:
        super().begin(task)
        return "You stand before a door."


class TrainOnly(SplitIgnored):
    def __init__(self, options: Any, services: Mapping[str, Any] | None = None) -> None:
        if options.split != "train":
            raise ValueError("rows.jsonl: no rows in this split")
        super().__init__(options, services)


class Live(ParrotProof):
    forkable = False


class Guarded(ParrotProof):
    async def begin(self, task: str) -> str:
        await self.service("guard")
        return super().begin(task)


@pytest.mark.parametrize(
    ("kind", "rule", "says"),
    [
        (MutableOptions, "types", "options are dict"),
        (NeedsMore, "types", "missing 1 required keyword-only argument: 'secret'"),
        (GlobalRandom, "determinism", "gold: two episodes with the same seed and task differ"),
        (GlobalNumpy, "determinism", "gold: two episodes with the same seed and task differ"),
        (GlobalNumpy, "determinism", "gold: NumPy's global generator is used or seeded"),
        (GlobalSeed, "determinism", "gold: Python's global generator is used or seeded"),
        (SeedDropped, "determinism", "two resets with the same seed and no task differ"),
        (OneTaskOnly, "determinism", "eight seeds all draw the same task"),
        (SplitIgnored, "splits", "task 0 of train is task 0 of validation"),
        (SplitIgnored, "splits", "task 0 of validation is task 0 of test"),
        (Shuffled, "splits", " of train is task "),
        (AsksAtRandom, "splits", "task 0 of train is task 0 of test"),
        (Mute, "splits", "('Password?'), and 20 of 20 are shared"),
        (History, "no leak", "changes the next one"),
        (SharedBoard, "group", "changes another that runs beside it"),
        (ForgivesOrder, "order", "step before the first reset does not raise OrderError"),
        (PoorGold, "gold policy", "earns 0, where reward_range promises 1"),
        (LateGold, "gold policy", "is cut short (turn_limit)"),
        (Generous, "reward floor", "empty text earns 1, above 0"),
        (OutOfRange, "rewards", "-5 is outside [0, 1]"),
        (DoesNotAddUp, "rewards", "'bonus': 0.5} is not 0"),
        (LiveInfo, "info", "raised"),
        (Unpicklable, "copies", "raised"),
        (ShallowFork, "copies", "a fork's actions after 1 turns change the original"),
        (SaysItCannotFork, "copies", "forkable is False, yet fork does not raise NotForkable"),
        (TwoFaces, "faces", "reset/step and areset/astep differ"),
        (ClosesOnceOnly, "close", "raised ValueError: closed twice"),
    ],
)
def test_each_rule_catches_its_fault(kind, rule, says):
    if kind is NeedsMore:
        env = kind(PasswordOptions(), secret=1)
    elif kind is MutableOptions:
        env = kind(None)
        env.options = MutableStandIn()  # type: ignore[assignment]
        says = "options are MutableStandIn"
    else:
        env = kind(kind.Options())
    with pytest.raises(CheckFailed) as error:
        check_env(env)
    found = by_rule(error.value).get(rule, [])
    assert any(says in finding for finding in found), error.value.violations


def test_without_a_gold_policy_its_rule_is_not_tested_and_every_other_is():
    report = check(NoGold)
    assert report.skipped == ("gold policy",)
    assert report.rules == tuple(name for name in RULES if name != "gold policy")
    assert report.num_gold_tasks == 0


@pytest.mark.parametrize(
    ("kind", "rule"),
    [(GlobalRandom, "determinism"), (DoesNotAddUp, "rewards"), (TwoFaces, "faces")],
)
def test_without_a_gold_policy_faults_of_others_are_found(kind, rule):
    bare = type(kind.__name__, (kind,), {"gold_policy": TextEnv.gold_policy})
    with pytest.raises(CheckFailed) as error:
        check(bare)
    found = by_rule(error.value)
    assert rule in found and "gold policy" not in found


@dataclass
class MutableStandIn:
    max_turns: int = 3
    step_timeout_s: float = 60.0
    token_budget: str = ""
    seed: int = 0


def test_options_must_be_frozen():
    @dataclass
    class Thawed(MutableStandIn):
        split: str = "train"

    class LooseOptions(ParrotProof):
        Options = Thawed  # type: ignore[assignment]

    env = LooseOptions(PasswordOptions())
    env.options = Thawed()  # type: ignore[assignment]
    with pytest.raises(CheckFailed, match="Thawed must be a frozen dataclass"):
        check_env(env)


def free_loop(kind: type[PasswordEnv], *tasks: int) -> tuple[list[str], float]:
    """What the rule finds, and the longest block that it timed, in seconds."""
    strength = Strength(gold_tasks=tasks, max_block_s=0.1)
    probe = Probe(kind(PasswordOptions()), tasks or (0,), 0, strength)
    return list(RULES["free loop"](probe)), probe.longest_block_s


def test_a_turn_that_holds_the_loop_is_timed():
    (finding,), block_s = free_loop(Sleeper)
    assert finding.startswith("task 0, gold: the event loop was not free for ")
    assert "test_checker.py:" in finding
    assert f" in Sleeper.turn, in each of {MAX_TRIES} episodes" in finding
    assert block_s >= 0.24


def test_after_a_long_block_no_other_rule_is_checked():
    """The rest of this check took minutes, in which nothing was said."""
    with pytest.raises(CheckFailed) as error:
        check_env(Sleeper(PasswordOptions()), num_tasks=1)
    (violation,) = error.value.violations
    assert violation.startswith("free loop: task 0, gold: the event loop was not free for ")
    assert violation.endswith("no other rule was checked, which would take minutes")


def test_a_rule_that_takes_long_is_named_while_it_runs(monkeypatch, caplog):
    monkeypatch.setattr(envs.checks.checker, "SILENCE_S", 0.0)
    check_env(ParrotProof(PasswordOptions()), num_tasks=1)
    assert "the rule 'determinism' takes long; it may take 180 s" in caplog.messages


def test_blocking_is_named_if_other_rules_fail_or_are_not_over():
    class Slow(PasswordEnv):
        async def turn(self, action: envs.Action) -> Reply:
            time.sleep(0.1)
            return super().turn(f"{action}")

        def begin(self, task):
            return f"{super().begin(task)} {random.random()}"

    with pytest.raises(CheckFailed) as error:
        check_env(Slow(PasswordOptions()), num_tasks=1, max_rule_s=2.0)
    found = by_rule(error.value)
    assert "held at" in found["free loop"][0]
    assert any("not over after 2 s" in finding for rule in found.values() for finding in rule)


def test_blocking_in_a_thread_leaves_the_loop_free():
    class Threaded(Sleeper):
        blocking = True

    found, block_s = free_loop(Threaded)
    assert found == []
    assert block_s < 0.1


def test_a_busy_machine_is_not_the_environments_fault():
    turns = 0

    class Interrupted(ParrotProof):
        """Every seventh turn is late, whichever it is."""

        def turn(self, action: envs.Action) -> Reply:
            nonlocal turns
            turns += 1
            if turns % 7 == 0:
                time.sleep(0.15)
            return super().turn(action)

    found, block_s = free_loop(Interrupted, 0, 6, 13)
    assert found == []
    assert block_s < 0.1
    assert turns > 36, "no episode was played again"


def test_tasks_that_differ_behind_the_same_question_are_apart():
    assert "splits" in check(OneQuestion).rules


def test_a_data_set_without_some_split_is_not_compared_there():
    assert "splits" in check(TrainOnly).rules


def test_the_splits_share_services():
    env = Guarded(PasswordOptions(), {"guard": "awake"})
    assert "splits" in check_env(env).rules


def test_what_breaks_every_episode_is_said_once():
    class Confused(ParrotProof):
        def begin(self, task: str) -> str:
            raise KeyError("where")

    with pytest.raises(CheckFailed) as error:
        check(Confused)
    found = [v for v in error.value.violations if "raised KeyError: 'where'" in v]
    assert len(found) == 1
    assert {"types", "determinism", "splits", "faces"} <= set(by_rule(error.value))


def test_environments_that_cannot_fork_pass_when_they_say_so():
    assert "copies" in check(Live).rules


async def test_it_can_be_called_inside_a_running_loop():
    await asyncio.sleep(0)
    assert check(ParrotProof).env_id == "password-v0"


def testglobal_generators_are_put_back():
    before, numpy_before = random.getstate(), np.random.get_state()[1].copy()
    with global_generators() as used:
        random.random()
        np.random.rand()
    assert used == ["Python's global generator", "NumPy's global generator"]
    assert random.getstate() == before
    assert np.array_equal(np.random.get_state()[1], numpy_before)
    with global_generators() as used:
        pass
    assert used == []
