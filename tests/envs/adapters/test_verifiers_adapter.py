"""Task sets of verifiers as environments: its own classes, its own scoring."""

from __future__ import annotations

import asyncio

import pytest

import envs
from envs.adapters.verifiers import VerifiersEnv
from envs.base.loop import loop_thread
from envs.play import aplay, play

vf = pytest.importorskip("verifiers.v1")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class SumData(vf.TaskData):
    answer: int


class SumTask(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def right(self, task, trace) -> float:
        return float(vf.extract_boxed_answer(trace.last_reply) == str(task.answer))

    @vf.reward
    async def parts(self, trace) -> dict[str, float]:
        return {"brief": 0.5 * (len(trace.last_reply) < 40)}

    @vf.metric
    async def turns(self, trace) -> float:
        if "fail" in trace.last_reply:
            raise RuntimeError("judge is away")
        return float(trace.num_turns)


class SumTasks(vf.Taskset[SumTask]):
    def load(self):
        for n in range(60):
            data = SumData(prompt=f"{n} + 7 =", system_prompt="Add.", answer=n + 7)
            yield SumTask(data, self.config.task)


class SumEnv(VerifiersEnv):
    """Add."""

    reward_range = (0.0, 2.5)
    reward_floor = 0.5

    @classmethod
    def taskset(cls, split):
        return SumTasks(vf.TasksetConfig())

    def gold_policy(self):
        return lambda question: f"\\boxed{{{int(question.split()[1]) + 7}}}"


class TwiceEnv(SumEnv):
    """A wrong sum may be corrected."""

    def user(self, conversation):
        if "\\boxed" in conversation.messages[-1][1]:
            return None
        return "In a box, please."


def make(kind, **options):
    return kind(envs.EnvOptions(**options))


def test_the_contract_holds():
    assert len(envs.check_env(make(SumEnv), num_tasks=3).tasks) == 3


def test_rewards_are_verifiers_own_by_name_and_weight():
    env = make(SumEnv)
    env.reset(options={"task": 0})
    task = env.tasks[0]
    assert env.state.messages == [("user", f"Add.\n\n{task.data.prompt}")]
    last = env.step(f"So it is \\boxed{{{task.data.answer}}}")
    assert last.info["rewards"] == {"right": 2.0, "brief": 0.5}
    assert last.info["scores"] == {"turns": 1.0}
    assert last.terminated
    env.reset(options={"task": 0})
    assert env.step("x" * 50).info["rewards"] == {"right": 0.0, "brief": 0.0}


def test_splits_hold_different_tasks_and_all_of_them():
    keys = [{t.key for t in make(SumEnv, split=s).tasks} for s in ("train", "validation", "test")]
    assert len(set.union(*keys)) == 60 == sum(map(len, keys))
    assert len(keys[0]) > 40

    class Whole(SumEnv):
        hashed = False

    assert len(make(Whole, split="test").tasks) == 60


def test_a_user_who_answers_makes_more_turns():
    env = make(TwiceEnv, max_turns=3)
    env.reset(options={"task": 1})
    answer = env.tasks[1].data.answer
    step = env.step(str(answer))
    assert (step.observation, step.reward, step.terminated) == ("In a box, please.", 0.0, False)
    twin = env.fork()
    last = env.step(f"\\boxed{{{answer}}}")
    assert (last.reward, last.terminated) == (2.5, True)
    assert last.info["scores"] == {"turns": 2.0}
    twin.step("no")
    cut = twin.step("no")
    assert (cut.truncated, cut.reward, cut.info["scores"]) == (True, 0.5, {"turns": 3.0})


def test_members_of_a_group_play_one_task_beside_others():
    env = make(SumEnv)

    async def together():
        members = env.group(6)
        policies = [member.gold_policy() for member in members]
        pairs = zip(members, policies, strict=True)
        return await asyncio.gather(*(aplay(m, policy, seed=4) for m, policy in pairs))

    played = loop_thread.run(together())
    assert played == [played[0]] * 6
    assert played[0].reward == 2.5
    assert play(env, env.gold_policy(), seed=4) == played[0]


def test_what_a_task_raises_is_a_failure_and_no_reward():
    env = make(SumEnv)
    env.reset(seed=0)
    with pytest.raises(envs.EnvFailure, match="judge is away") as failure:
        env.step("fail")
    assert not failure.value.retryable


class BoxedTask(SumTask):
    @vf.reward
    async def run(self, runtime) -> float:
        return 1.0


class ContainerTask(SumTask):
    NEEDS_CONTAINER = True


@pytest.mark.parametrize(
    ("kind", "says"),
    [(BoxedTask, "BoxedTask needs a runtime: run"), (ContainerTask, "its tools or container")],
)
def test_tasks_that_need_verifiers_own_machinery_are_refused(kind, says):
    class Tasks(SumTasks):
        def load(self):
            yield kind(SumData(prompt="?", answer=1), self.config.task)

    class Refused(SumEnv):
        @classmethod
        def taskset(cls, split):
            return Tasks(vf.TasksetConfig())

    with pytest.raises(ValueError, match=says):
        make(Refused)


def test_an_endless_set_is_refused_and_a_view_of_it_is_not():
    class Endless(SumTasks):
        INFINITE = True

    class Refused(SumEnv):
        @classmethod
        def taskset(cls, split):
            return Endless(vf.TasksetConfig())

    class Taken(Refused):
        @classmethod
        def taskset(cls, split):
            return Endless(vf.TasksetConfig()).take(30)

    with pytest.raises(ValueError, match=r"the task set is endless: .take\(1000\) of it"):
        make(Refused)
    assert 10 < len(make(Taken).tasks) <= 30
