"""The base class: seeds, order, deadlines, both faces, copies, services, concurrency."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import pytest

import envs
from envs import (
    Action,
    EnvFailure,
    EnvOptions,
    NotForkable,
    OrderError,
    Reply,
    StopReason,
    TextEnv,
    cut,
    finish,
    go_on,
)
from envs.base.loop import loop_thread
from envs.play import aplay, play


@dataclass(frozen=True, kw_only=True)
class DiceOptions(EnvOptions):
    max_turns: int = 3
    sides: int = 6


class DiceEnv(TextEnv[int, list[int]]):
    """Each turn rolls a die; "stop" ends the episode with the sum."""

    Options = DiceOptions
    num_tasks = 10

    def __init__(self, options: DiceOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, range(self.num_tasks), services)
        self.env_id = "dice-v0"
        self.sides = options.sides

    def begin(self, task: int) -> str:
        self.state = [task]
        return f"start at {task}"

    def turn(self, action: Action) -> Reply:
        if action == "stop":
            return finish({"sum": float(sum(self.state)), "manners": 0.5}, scores={"rolls": 3.0})
        self.state.append(int(self.np_random.integers(1, self.sides + 1)))
        return go_on(f"rolled {self.state[-1]}", {"effort": -0.25})


def dice(**options: Any) -> DiceEnv:
    return DiceEnv(DiceOptions(**options))


def rolls(env: DiceEnv, count: int = 2) -> list[str]:
    return [env.step("roll").observation for _ in range(count)]


# ---- actions ---------------------------------------------------------------------------------


async def test_an_action_is_a_text_in_both_faces():
    env = dice()
    env.reset(seed=0)
    for wrong in (3, None, b"roll", {"role": "user", "content": "roll"}):
        with pytest.raises(TypeError, match="dice-v0: an action must be a str, not"):
            env.step(wrong)
        with pytest.raises(TypeError, match="dice-v0: an action must be a str, not"):
            await env.astep(wrong)
    # Nothing was taken: the episode goes on. And a text of another class is a text.
    assert env.step(np.str_("roll")).info["turn"] == 1
    heard = []
    env.turn = lambda action: heard.append(action) or finish({})
    await env.astep(Action("stop", "length"))
    assert (type(heard[0]), heard[0].finish_reason) == (Action, "length")


# ---- seeds and tasks -------------------------------------------------------------------------


def test_seeds_decide_task_and_dice():
    one, other = dice(sides=10**6), dice(sides=10**6)
    starts = [(one.reset(seed=s), rolls(one)) for s in range(20)]
    assert starts == [(other.reset(seed=s), rolls(other)) for s in range(20)]
    assert len({start[0] for start, _ in starts}) > 5
    assert len({roll for _, two in starts for roll in two}) == 40


def test_a_task_can_be_picked_and_a_seed_still_decides_the_dice():
    env = dice(sides=10**6)
    observation, info = env.reset(seed=1, options={"task": 7})
    assert (observation, info) == ("start at 7", {"task": 7})
    first = rolls(env)
    env.reset(seed=2, options={"task": 7})
    assert rolls(env) != first


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"task": 10}, r"task \(10\) must be an int from 0 to 9"),
        ({"task": -1}, r"task \(-1\) must be an int"),
        ({"task": "3"}, r"task \('3'\) must be an int"),
        ({"tusk": 3}, "unknown reset option 'tusk'; known: 'task'"),
    ],
)
def test_wrong_reset_options(options, says):
    with pytest.raises(ValueError, match=says):
        dice().reset(options=options)


def test_global_generators_are_not_touched():
    env = dice()
    np.random.seed(3)
    before = np.random.get_state()[1].copy()
    env.reset(seed=0)
    rolls(env)
    assert np.array_equal(np.random.get_state()[1], before)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"split": "dev"}, r"split \('dev'\) must be one of train, validation, test"),
        ({"max_turns": 0}, r"max_turns \(0\) must be >= 1"),
        ({"step_timeout_s": 0.0}, r"step_timeout_s \(0.0\) must be > 0"),
    ],
)
def test_wrong_options(options, says):
    with pytest.raises(ValueError, match=says):
        EnvOptions(**options)


def test_a_split_without_tasks_is_refused():
    class Empty(DiceEnv):
        num_tasks = 0

    with pytest.raises(ValueError, match="Empty: split 'test' has no tasks"):
        Empty(DiceOptions(split="test"))


# ---- an episode's course ---------------------------------------------------------------------


def test_rewards_are_named_and_add_up_turn_by_turn():
    env = dice(sides=1)
    env.reset(options={"task": 4})
    first = env.step("roll")
    assert (first.reward, first.terminated, first.truncated) == (-0.25, False, False)
    assert first.info == {
        "task": 4,
        "turn": 1,
        "rewards": {"effort": -0.25},
        "scores": {},
        "stop_reason": None,
        "tool_calls": [],
    }
    last = env.step("stop")
    assert (last.reward, last.terminated, last.truncated) == (5.5, True, False)
    assert last.info["rewards"] == {"sum": 5.0, "manners": 0.5}
    assert last.info["scores"] == {"rolls": 3.0}


def test_the_turn_limit_truncates_and_keeps_the_turns_reward():
    env = dice(max_turns=2)
    env.reset(seed=0)
    assert not env.step("roll").truncated
    last = env.step("roll")
    assert (last.terminated, last.truncated) == (False, True)
    assert last.info["stop_reason"] is StopReason.TURN_LIMIT
    assert last.reward == -0.25 and last.observation.startswith("rolled")


def test_ending_at_the_turn_limit_is_an_end_not_a_cut():
    env = dice(max_turns=1)
    env.reset(seed=0)
    step = env.step("stop")
    assert (step.terminated, step.truncated, step.info["stop_reason"]) == (True, False, None)


def test_an_environment_may_cut_for_a_reason_of_its_own():
    class Impatient(DiceEnv):
        def turn(self, action: Action) -> Reply:
            assert self.turns_left == 3
            return cut(StopReason.INVALID_ACTIONS, {"effort": -1.0}, "enough")

    env = Impatient(DiceOptions())
    env.reset(seed=0)
    step = env.step("?")
    assert (step.terminated, step.truncated, step.reward) == (False, True, -1.0)
    assert step.info["stop_reason"] == "invalid_actions"


def test_order_is_enforced():
    env = dice(max_turns=1)
    with pytest.raises(OrderError, match="dice-v0: call reset before step"):
        env.step("roll")
    env.reset(seed=0)
    env.step("stop")
    with pytest.raises(OrderError, match="the episode is over"):
        env.step("roll")
    env.reset(seed=0)
    assert env.step("stop").terminated


async def test_two_steps_at_once_are_refused():
    class Slow(DiceEnv):
        async def turn(self, action: Action) -> Reply:
            await asyncio.sleep(0.01)
            return go_on("done")

    env = Slow(DiceOptions())
    await env.areset(seed=0)
    first = asyncio.create_task(env.astep("a"))
    await asyncio.sleep(0)
    with pytest.raises(OrderError, match="still running"):
        await env.astep("b")
    assert (await first).observation == "done"
    assert (await env.astep("c")).info["turn"] == 2


@pytest.mark.parametrize("where", ["begin", "turn"])
def test_an_episode_that_raised_cannot_go_on(where):
    class Fragile(DiceEnv):
        def begin(self, task: int) -> str:
            if where == "begin" and task == 1:
                raise RuntimeError("no")
            return super().begin(task)

        def turn(self, action: Action) -> Reply:
            if action == "break":
                raise RuntimeError("no")
            return super().turn(action)

    env = Fragile(DiceOptions())
    env.reset(options={"task": 0})
    with pytest.raises(RuntimeError, match="no"):
        env.reset(options={"task": 1}) if where == "begin" else env.step("break")
    with pytest.raises(OrderError):
        env.step("stop")
    env.reset(options={"task": 0})
    assert env.step("stop").terminated


def test_a_plain_text_is_an_action_without_a_finish_reason():
    seen: list[Action] = []

    class Watcher(DiceEnv):
        def turn(self, action: Action) -> Reply:
            seen.append(action)
            return go_on("")

    env = Watcher(DiceOptions())
    env.reset(seed=0)
    env.step("plain")
    env.step(Action("cut off", "length"))
    assert [(str(a), a.finish_reason) for a in seen] == [("plain", None), ("cut off", "length")]


# ---- two faces -------------------------------------------------------------------------------


class AsyncDice(DiceEnv):
    async def begin(self, task: int) -> str:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().begin(task)

    async def turn(self, action: Action) -> Reply:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().turn(action)


@pytest.mark.parametrize("kind", [DiceEnv, AsyncDice])
async def test_both_faces_do_the_same_also_inside_a_running_loop(kind):
    def policy(observation: str) -> str:
        return "stop" if observation.startswith("rolled") else "roll"

    env = kind(DiceOptions())
    there = play(env, policy, seed=5, task=2)
    here = await aplay(env, policy, seed=5, task=2)
    assert there == here
    assert here.actions == ("roll", "stop")
    assert here.reward == there.reward > 2


def test_it_is_a_gymnasium_environment():
    env = dice()
    assert isinstance(env, gymnasium.Env)
    observation, _ = env.reset(seed=0)
    assert observation in env.observation_space
    assert env.action_space.sample() in env.action_space
    assert 3 not in env.action_space
    wrapped = gymnasium.wrappers.TimeLimit(env, max_episode_steps=1)
    wrapped.reset(seed=0)
    assert wrapped.step("roll")[3] is True


def test_a_synchronous_call_inside_an_asynchronous_turn_is_refused_not_hung():
    inner = AsyncDice(DiceOptions())

    class Nested(DiceEnv):
        async def turn(self, action: Action) -> Reply:  # type: ignore[override]
            inner.reset(seed=0)
            return go_on("")

    env = Nested(DiceOptions())
    env.reset(seed=0)
    with pytest.raises(RuntimeError, match="synchronous method was called inside"):
        env.step("roll")


@pytest.mark.parametrize("leaves", [SystemExit, KeyboardInterrupt])
def test_an_exit_inside_an_asynchronous_turn_is_the_callers_and_harms_no_other_episode(leaves):
    class Leaving(DiceEnv):
        async def turn(self, action: Action) -> Reply:  # type: ignore[override]
            raise leaves(3)

    env = Leaving(DiceOptions())
    env.reset(seed=0)
    with pytest.raises(leaves):
        env.step("roll")
    other = AsyncDice(DiceOptions())
    other.reset(seed=0)
    assert other.step("roll").observation


# ---- deadlines and threads -------------------------------------------------------------------


class SlowDice(DiceEnv):
    async def turn(self, action: Action) -> Reply:  # type: ignore[override]
        if action == "own":
            raise TimeoutError("the author's own")
        await asyncio.sleep(30)
        return go_on("")


def test_a_step_has_a_deadline_in_both_faces():
    env = SlowDice(DiceOptions(step_timeout_s=0.02))
    for step in (lambda: env.step("wait"), lambda: asyncio.run(env.astep("wait"))):
        env.reset(seed=0)
        with pytest.raises(EnvFailure, match=r"longer than step_timeout_s \(0.02 s\)") as late:
            step()
        assert late.value.retryable
        with pytest.raises(OrderError):
            env.step("stop")


def test_the_authors_own_timeout_is_not_the_steps():
    env = SlowDice(DiceOptions())
    env.reset(seed=0)
    with pytest.raises(TimeoutError, match="the author's own"):
        env.step("own")


class BlockingDice(DiceEnv):
    blocking = True
    threads: list[threading.Thread] = []  # noqa: RUF012
    release = threading.Event()

    def turn(self, action: Action) -> Reply:
        self.threads.append(threading.current_thread())
        self.release.wait(timeout=10)
        return super().turn(action)


async def test_a_blocking_environment_stalls_no_other_episode():
    BlockingDice.threads.clear()
    BlockingDice.release.clear()
    slow, quick = BlockingDice(DiceOptions()), dice(max_turns=50)
    await slow.areset(seed=0)
    await quick.areset(seed=0)
    waiting = asyncio.create_task(slow.astep("roll"))
    for _ in range(40):
        await quick.astep("roll")
        await asyncio.sleep(0)
    assert not waiting.done(), "it is held until released, and forty other steps went by"
    BlockingDice.release.set()
    assert (await waiting).observation.startswith("rolled")
    assert BlockingDice.threads[0] is not threading.current_thread()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            None,
            r"OddDice.turn must return envs.go_on\(...\), envs.finish\(...\) or .* not NoneType",
        ),
        (go_on(None), "OddDice.turn must give its observation as a str, not as NoneType"),
        (finish(1.0), "OddDice.turn must name its rewards, each a number: .* not 1.0"),
        (finish({"sum": "1"}), "OddDice.turn must name its rewards, .* not {'sum': '1'}"),
        (finish({}, 3), "OddDice.turn must give its observation as a str, not as int"),
    ],
)
async def test_an_answer_of_another_type_is_refused_in_both_faces(answer, message):
    class OddDice(DiceEnv):
        def begin(self, task):
            return super().begin(task) if task else 7

        def turn(self, action):
            return answer

    env = OddDice(DiceOptions())
    env.reset(seed=0, options={"task": 1})
    with pytest.raises(TypeError, match=message):
        env.step("roll")
    await env.areset(seed=0, options={"task": 1})
    with pytest.raises(TypeError, match=message):
        await env.astep("roll")
    with pytest.raises(TypeError, match=r"begin must give its observation as a str, not as int"):
        env.reset(seed=0, options={"task": 0})


def test_a_reply_that_is_given_again_leaves_earlier_turns_alone():
    constant = go_on("again", {"sum": 0.5}, scores={"s": 1.0})

    class Repeating(DiceEnv):
        def turn(self, action: Action) -> Reply:
            return constant

    env = Repeating(DiceOptions(max_turns=3))
    env.reset(seed=0, options={"task": 1})
    steps = [env.step("roll") for _ in range(3)]
    assert [step.info["turn"] for step in steps] == [1, 2, 3]
    assert [step.info["stop_reason"] for step in steps] == [None, None, StopReason.TURN_LIMIT]
    assert [step.done for step in steps] == [False, False, True]
    assert [step.rewards for step in steps] == [{"sum": 0.5}] * 3


def test_what_an_author_goes_on_writing_to_is_copied():
    class Counting(DiceEnv):
        def turn(self, action: Action) -> Reply:
            self.kept["sum"] = self.kept.get("sum", 0.0) + 1.0
            return go_on("again", self.kept, self.kept)

    env = Counting(DiceOptions(max_turns=3))
    env.kept = {}
    env.reset(seed=0)
    steps = [env.step("roll") for _ in range(3)]
    assert [step.reward for step in steps] == [1.0, 2.0, 3.0]
    assert [step.info["rewards"]["sum"] for step in steps] == [1.0, 2.0, 3.0]
    assert [step.info["scores"]["sum"] for step in steps] == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_options_that_are_no_numbers_are_refused(value):
    @dataclass(frozen=True, kw_only=True)
    class WeightedOptions(EnvOptions):
        weight: float = 1.0

    with pytest.raises(ValueError, match=rf"^weight \({value}\) must be finite$"):
        WeightedOptions(weight=value)
    with pytest.raises(ValueError, match=rf"^step_timeout_s \({value}\) must be finite$"):
        EnvOptions(step_timeout_s=value)


async def test_waiting_episodes_wait_together():
    running = most = 0

    class ToolDice(DiceEnv):
        async def turn(self, action: Action) -> Reply:  # type: ignore[override]
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0.02)
            running -= 1
            return finish({"sum": 1.0})

    members = ToolDice(DiceOptions()).group(256)
    for env in members:
        await env.areset(seed=0)
    steps = await asyncio.gather(*(env.astep("roll") for env in members))
    assert most == 256, "every call is under way before the first is answered"
    assert len(steps) == 256 and all(step.terminated for step in steps)


# ---- copies ----------------------------------------------------------------------------------


def test_a_group_starts_equal_whatever_runs_beside_it():
    env = dice(sides=10**6)
    env.reset(seed=9)
    env.step("roll")
    members = env.group(4)
    seen = []
    for number, member in enumerate(members):
        start = member.reset(seed=3, options={"task": 5})
        env.reset(seed=number)
        rolls(env)
        seen.append((start, rolls(member)))
    assert seen == [seen[0]] * 4


def test_members_of_a_group_have_generators_of_their_own():
    env = dice(sides=10**6)
    env.reset(seed=9)
    one, other = env.group(2)
    assert (one.reset(), rolls(one)) == (other.reset(), rolls(other))


def test_a_fork_goes_on_alike_and_apart():
    env = dice(sides=10**6, max_turns=9)
    env.reset(seed=3, options={"task": 1})
    env.step("roll")
    fork, other = env.fork(), env.fork(reseed=8)
    assert fork.state == env.state and fork.state is not env.state
    alike, again, differently = rolls(env), rolls(fork), rolls(other)
    assert alike == again != differently
    assert fork.step("roll").info["turn"] == 4


def test_a_snapshot_pickles_and_can_be_restored_more_than_once():
    env = dice(sides=10**6, max_turns=9)
    env.reset(seed=3)
    env.step("roll")
    frozen = pickle.loads(pickle.dumps(env.snapshot()))
    seen = rolls(env)
    for target in (env, dice(sides=10**6, max_turns=9)):
        target.restore(frozen)
        assert rolls(target) == seen


async def test_copies_have_asynchronous_twins():
    env = dice(sides=10**6, max_turns=9)
    await env.areset(seed=3)
    frozen = await env.asnapshot()
    fork = await env.afork()
    other = await env.afork(reseed=1)
    assert rolls(env) == rolls(fork) != rolls(other)
    await env.arestore(frozen)
    fork.restore(frozen)
    assert rolls(env) == rolls(fork)


def test_a_begin_that_sets_no_state_is_named_when_it_is_copied():
    class Bare(DiceEnv):
        def begin(self, task: int) -> str:
            return ""

    env = Bare(DiceOptions())
    env.reset(seed=0)
    with pytest.raises(NotForkable, match=r"Bare\.begin must set self\.state"):
        env.fork()


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"max_turns": "3"}, r"max_turns \('3'\) must be of type int"),
        ({"max_turns": True}, r"max_turns \(True\) must be of type int"),
        ({"split": 1}, r"split \(1\) must be of type str"),
        ({"step_timeout_s": "5"}, r"step_timeout_s \('5'\) must be of type float"),
        ({"sides": 6.0}, r"sides \(6.0\) must be of type int"),
    ],
)
def test_an_option_of_the_wrong_type_is_named(wrong, says):
    with pytest.raises(ValueError, match=says):
        DiceOptions(**wrong)
    assert DiceOptions(step_timeout_s=5).step_timeout_s == 5


def test_what_cannot_be_copied_says_so():
    class Live(DiceEnv):
        forkable = False

    class Handle(DiceEnv):
        def begin(self, task: int) -> str:
            self.state = threading.Lock()  # type: ignore[assignment]
            return ""

    for kind, says in ((Live, "its state cannot be copied"), (Handle, "state does not pickle")):
        env = kind(DiceOptions())
        env.reset(seed=0)
        with pytest.raises(NotForkable, match=says):
            env.fork()
    with pytest.raises(OrderError):
        dice().snapshot()
    other = dice()
    other.env_id = "coins-v0"
    env = dice()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="'coins-v0' cannot restore a snapshot of 'dice-v0'"):
        other.restore(env.snapshot())


# ---- services --------------------------------------------------------------------------------


class Served(DiceEnv):
    """Counts how its service is opened and closed."""

    log: list[str] = []  # noqa: RUF012

    @classmethod
    @asynccontextmanager
    async def open_services(cls, options: EnvOptions) -> AsyncIterator[Mapping[str, Any]]:
        cls.log.append("open")
        await asyncio.sleep(0.001)
        yield {"number": 42}
        cls.log.append("close")

    async def turn(self, action: Action) -> Reply:  # type: ignore[override]
        return go_on(str(await self.service("number")))


@pytest.fixture
def served():
    Served.log.clear()
    return Served(DiceOptions())


def test_services_open_at_the_first_use_and_close_once(served):
    served.reset(seed=0)
    assert Served.log == []
    assert served.step("").observation == "42"
    served.step("")
    assert Served.log == ["open"]
    served.close()
    served.close()
    assert Served.log == ["open", "close"]
    with pytest.raises(RuntimeError, match="Served is closed: make a new one"):
        served.reset(seed=0)
        served.step("")


async def test_copies_share_services_until_the_last_closes(served):
    members = served.group(8)
    for env in members:
        await env.areset(seed=0)
    await asyncio.gather(*(env.astep("") for env in members))
    assert Served.log == ["open"]
    for env in members:
        await env.aclose()
        await env.aclose()
    assert Served.log == ["open"]
    await served.aclose()
    assert Served.log == ["open", "close"]


def test_a_copy_closed_before_anything_was_opened_holds_nothing(served):
    fork = served.group(1)[0]
    served.close()
    fork.reset(seed=0)
    fork.step("")
    fork.close()
    assert Served.log == ["open", "close"]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_refused_copy_holds_no_services(served, asynchronous):
    served.forkable = False
    served.reset(seed=0)
    served.step("")
    with pytest.raises(NotForkable):
        if asynchronous:
            loop_thread.run(served.afork())
        else:
            served.fork()
    served.close()
    assert Served.log == ["open", "close"]


def test_injected_services_are_their_owners(served):
    env = Served(DiceOptions(), services={"number": 7})
    env.reset(seed=0)
    assert env.step("").observation == "7"
    env.close()
    env.reset(seed=0)
    assert env.step("").observation == "7"
    assert Served.log == []


async def test_services_belong_to_one_loop(served):
    await served.areset(seed=0)
    await served.astep("")
    with pytest.raises(RuntimeError, match="used on another event loop before"):
        await asyncio.to_thread(served.step, "")
    with pytest.raises(RuntimeError, match=r"await aclose\(\) there"):
        await asyncio.to_thread(served.close)
    await served.aclose()
    assert Served.log == ["open", "close"]


def test_public_names_exist():
    assert sorted(envs.__all__) == list(envs.__all__)
    assert all(name in vars(envs) for name in envs.__all__)
