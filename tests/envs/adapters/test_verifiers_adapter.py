"""Task sets of verifiers as environments: its own classes, its own scoring."""

from __future__ import annotations

import asyncio

import pytest
from parity import Seen, ours

import envs
from envs.adapters.verifiers import VerifiersEnv, opening
from envs.base.loop import loop_thread
from envs.episode import Action
from envs.play import aplay, play

vf = pytest.importorskip("verifiers.v1")
ModelContext = pytest.importorskip("verifiers.v1.clients").ModelContext
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
        return lambda question: f"\\boxed{{{int(question.split()[0]) + 7}}}"


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
    assert env.state.messages == [("system", "Add."), ("user", task.data.prompt)]
    assert env.system_prompt == "Add."
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


class Scripted(vf.Client):
    """Answers with moves, and keeps the messages that it was asked."""

    def __init__(self, moves):
        self.moves, self.asked = iter(moves), []

    async def get_response(self, dialect, body, sampling, **_):
        self.asked.append([(one["role"], one["content"]) for one in body["messages"]])
        move = next(self.moves)
        reason = getattr(move, "finish_reason", None) or "stop"
        message = {"role": "assistant", "content": str(move)}
        choice = {"index": 0, "message": message, "finish_reason": reason}
        raw = {"id": "1", "object": "chat.completion", "created": 0, "model": "m"}
        response = dialect.parse_response(dialect.validate_response({**raw, "choices": [choice]}))
        response.raw = {**raw, "choices": [choice]}
        return response


class InProcess(vf.Harness):
    """One call of the model per segment, over verifiers' own interception server."""

    APPENDS_SYSTEM_PROMPT = SUPPORTS_RESUME = True

    async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
        import aiohttp
        from verifiers.v1.dialects.chat import message_to_wire

        messages = [message_to_wire(message) for message in opening(data)]
        body = {"model": ctx.model, "messages": messages}
        head = {"Authorization": f"Bearer {secret}"}
        async with (
            aiohttp.ClientSession(headers=head) as http,
            http.post(f"{endpoint}/chat/completions", json=body) as reply,
        ):
            return vf.ProgramResult(int(reply.status != 200), "", await reply.text())


async def their_episode(task, moves, user, max_turns, monkeypatch):
    """The trace of verifiers' own rollout of these moves, and what its model was asked."""
    from verifiers.v1 import rollout
    from verifiers.v1.interception import server

    client = Scripted(moves)
    monkeypatch.setattr(server, "resolve_client", lambda _: client)
    run = rollout.Rollout(
        task=task, agent_config=vf.AgentConfig(), harness=InProcess(vf.HarnessConfig()),
        ctx=ModelContext("m", vf.EvalClientConfig()), runtime_config=vf.SubprocessConfig(),
        timeouts=rollout.RolloutTimeouts(), limits=rollout.RolloutLimits(max_turns=max_turns),
        has_user=user is not None,
    )  # fmt: skip
    await run.open()
    if user is None:
        await run.step()
        if run.ok:
            run.trace.stop("agent_completed")
        return await run.close(), client.asked
    exchange = vf.Interaction(run)
    said = None if task.data.prompt is not None else user([])
    while not (await exchange.turn(said)).terminated:
        said = user([(one.role, one.content) for one in run.trace.messages])
        if said is None:
            break
    return await exchange.close(), client.asked


def env_of(task, user=None):
    """A class of environments with one task."""

    class Tasks(vf.Taskset):
        def load(self):
            yield task

    class Made(VerifiersEnv):
        hashed = False

        @classmethod
        def taskset(cls, split):
            return Tasks(vf.TasksetConfig())

    if user is not None:
        Made.user = lambda self, conversation: user(conversation.messages)
    return Made


class ReadyTask(vf.Task[SumData]):
    """Worth something only if all hooks ran, in their order."""

    async def setup(self, trace, runtime):
        trace.info["ready"] = trace.num_turns == 0

    async def finalize(self, trace, runtime=None):
        trace.info["reply"] = trace.last_reply

    @vf.reward(weight=0.5)
    async def right(self, task, trace) -> float:
        return float(trace.info["ready"] and trace.info["reply"] == str(task.answer))

    @vf.metric
    async def seen(self, trace) -> dict[str, float]:
        return {
            "cut": float(trace.is_truncated), "completed": float(trace.is_completed),
            "ok": float(trace.ok), "turns": float(trace.num_turns),
            "closed": float(trace.stop_condition == "user_closed"),
            "users": float(sum(one.role == "user" for one in trace.messages)),
        }  # fmt: skip


class TraceStop(ReadyTask):
    @vf.stop
    async def said_stop(self, trace: vf.Trace) -> bool:
        return "stop" in trace.last_reply


class RequestStop(ReadyTask):
    @vf.stop
    def asked_thrice(self, request: vf.Request) -> bool:
        return sum(one.role == "user" for one in request.messages) == 3


class ResponseStop(ReadyTask):
    @vf.stop
    async def gave_up(self, response: vf.Response, trace: vf.Trace) -> bool:
        return response.message.content == "stop"


def plugged_stop(trace: vf.Trace) -> bool:
    return trace.num_turns == 2


def insists(messages):
    """A user who asks for more until the agent says "done"."""
    return None if messages and messages[-1][1] == "done" else f"Message {len(messages)}, more?"


SHOTS = [
    vf.SystemMessage(content="Add."), vf.UserMessage(content="1 + 1"),
    vf.AssistantMessage(content="2"), vf.UserMessage(content="2 + 1"),
]  # fmt: skip
PLUGGED = vf.TaskConfig(stops={"two": {"fn": f"{__name__}:plugged_stop"}})


@pytest.mark.parametrize(
    ("kind", "prompt", "user", "moves"),
    [
        (ReadyTask, "2 + 1", None, ["3"]),
        (ReadyTask, "2 + 1", None, [""]),
        (ReadyTask, "2 + 1", None, [Action("3", "length")]),
        (ReadyTask, "2 + 1", insists, ["1", "2", "3", "4"]),
        (ReadyTask, "2 + 1", insists, ["1", "2", "done"]),
        (ReadyTask, "2 + 1", insists, ["3", "done"]),
        (ReadyTask, None, insists, ["1", "done"]),
        (ReadyTask, SHOTS, None, ["3"]),
        (ReadyTask, SHOTS, insists, ["3", "done"]),
        (ReadyTask, SHOTS[1:], None, ["3"]),
        (TraceStop, "2 + 1", insists, ["1", "stop", "3"]),
        (TraceStop, "2 + 1", None, ["stop"]),
        (RequestStop, "2 + 1", insists, ["1", "3", "4"]),
        (ResponseStop, "2 + 1", insists, ["1", "stop", "3"]),
        (SumTask, "2 + 1", None, ["\\boxed{3}"]),
    ],
)
@pytest.mark.parametrize("config", [None, PLUGGED])
def test_it_asks_scores_and_ends_as_verifiers_own_rollout(
    kind, prompt, user, moves, config, monkeypatch
):
    system = "Add." if isinstance(prompt, str) else None
    task = kind(SumData(prompt=prompt, system_prompt=system, answer=3), config)
    trace, asked = asyncio.run(their_episode(task, moves, user, 3, monkeypatch))
    env = make(env_of(task, user), max_turns=3)
    read = []

    def conversation(_):
        read.append(env.state.messages)
        return ""

    played = ours(env, moves, read=conversation)
    cut = trace.stop_condition == "max_turns"
    assert (read[:-1], played[-1]) == (asked, Seen("", trace.reward, not cut, cut))
    mine = env.state.trace
    assert (mine.rewards, mine.metrics, mine.info) == (trace.rewards, trace.metrics, trace.info)
    same = ("stop_condition", "is_completed", "is_truncated", "ok", "transcript", "num_turns")
    for name in same:
        assert getattr(mine, name) == getattr(trace, name), name


def test_the_agent_reads_the_roles_of_a_prompt_of_several_messages():
    env = make(env_of(ReadyTask(SumData(prompt=SHOTS, answer=3))))
    assert env.reset(seed=0)[0] == "[user]\n1 + 1\n\n[assistant]\n2\n\n[user]\n2 + 1"
    assert env.system_prompt == "Add."
    env = make(env_of(ReadyTask(SumData(prompt=SHOTS[3:], answer=3))))
    assert (env.reset(seed=0)[0], env.system_prompt) == ("2 + 1", None)


class BoxedTask(SumTask):
    @vf.reward
    async def run(self, runtime) -> float:
        return 1.0


class ContainerTask(SumTask):
    NEEDS_CONTAINER = True


class PreparedTask(SumTask):
    async def setup(self, trace, runtime):
        await runtime.write("question", b"")

    async def finalize(self, trace, runtime):
        trace.info["left"] = [name async for name in runtime.read("answer")]


class SecretTask(SumTask):
    def runtime_env(self):
        return {"KEY": "1"}


class ServedTask(SumTask):
    @classmethod
    def toolsets(cls, config):
        return [vf.Toolset]


class MaskedTask(SumTask):
    @vf.intercept
    async def mask(self, response: vf.Response):
        return None


class VagueTask(SumTask):
    @vf.stop
    async def enough(self, trace):
        return True


class DeferredTask(SumTask):
    scoring_deferred = True


class BoxJudge(vf.Judge):
    async def score(self, task, trace, runtime):
        return 1.0


class JudgedTask(SumTask):
    def plugged_judges(self):
        return [BoxJudge()]


CALL = {"id": "1", "name": "add", "arguments": "{}"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


@pytest.mark.parametrize(
    ("kind", "data", "says"),
    [
        (BoxedTask, {}, "BoxedTask needs a runtime: run:"),
        (ContainerTask, {}, "a runtime: NEEDS_CONTAINER"),
        (PreparedTask, {}, "a runtime: setup, finalize"),
        (SecretTask, {}, "a runtime: runtime_env"),
        (JudgedTask, {}, "a runtime: box"),
        (ServedTask, {}, "tool servers: toolsets"),
        (MaskedTask, {}, "rewritten messages: mask"),
        (VagueTask, {}, "annotated hooks: enough must have exactly one Request, Response, or"),
        (DeferredTask, {}, "scoring elsewhere: scoring_deferred"),
        (SumTask, {"image": "python:3.12"}, "a runtime: image"),
        (SumTask, {"workdir": "/app"}, "a runtime: workdir"),
        (SumTask, {"agent_user": "agent"}, "a runtime: agent_user"),
        (SumTask, {"skills": ["skill"]}, "a runtime: skills"),
        (SumTask, {"network_allow": []}, "a runtime: network_allow"),
        (SumTask, {"network_block": ["a.org"]}, "a runtime: network_block"),
        (SumTask, {"artifacts": [{"source": "/out"}]}, "a runtime: artifacts"),
        (SumTask, {"resources": {"cpu": 2.0}}, "a runtime: resources"),
        (SumTask, {"timeout": {"agent": 9.0}}, "a time limit of the agent: timeout.agent"),
        (SumTask, {"prompt": None}, "a user: prompt"),
        (SumTask, {"prompt": [{"role": "user", "content": [IMAGE]}]}, "images: prompt"),
        (SumTask, {"prompt": [{"role": "assistant", "tool_calls": [CALL]}]}, "calls of tools"),
    ],
)
def test_what_a_task_needs_of_verifiers_beyond_the_adapter_is_refused_at_load(kind, data, says):
    task = kind(SumData.model_validate({"prompt": "?", "answer": 1} | data))
    with pytest.raises(ValueError, match=says) as refused:
        make(env_of(task))
    assert "\n" not in str(refused.value)


RUN = {
    vf.Task: {
        "setup",
        "finalize",
        "score",
        "hooks",
        "plugged_judges",
        "key",
        "hash",
    },
    vf.TaskData: {"idx", "id", "name", "description", "prompt", "system_prompt", "timeout"},
    vf.TaskConfig: {"judges", "stops", "metrics", "rewards"},
    vf.Taskset: {"load", "INFINITE", "bounded", "transform"},
}
"""What the adapter runs."""
REFUSED = {
    vf.Task: {"NEEDS_CONTAINER", "toolsets", "runtime_env", "scoring_deferred"},
    vf.TaskData: {
        "image", "workdir", "agent_user", "skills", "network_allow", "network_block", "artifacts",
        "resources",
    },
    vf.TaskConfig: set(),
    vf.Taskset: {"toolsets"},
}  # fmt: skip
"""What it refuses when a task set is loaded, see the test above."""
NO_PART = {
    # Of verifiers' command line, of other environments than the plain one, and what views return.
    vf.Task: {
        "validate", "stage_verifier", "defer_scoring", "with_data", "with_system_prompt",
        "data_type", "config_type",
    },
    vf.TaskData: {"artifact_max_bytes", "prompt_text"},
    vf.TaskConfig: set(),
    vf.Taskset: {"include", "exclude", "shuffle", "skip", "take", "select", "task_type"},
}  # fmt: skip
"""What takes no part in verifiers' own rollout of a task, or is a helper."""


@pytest.mark.parametrize("kind", RUN)
def test_each_public_name_of_verifiers_is_run_refused_or_no_part_of_a_rollout(kind):
    public = {name for name in vars(kind) if not name.startswith(("_", "model_"))}
    public |= set(getattr(kind, "model_fields", ()))
    assert public == RUN[kind] | REFUSED[kind] | NO_PART[kind]


def test_another_environment_of_verifiers_or_a_shared_tool_server_is_refused():
    class Served(SumTasks):
        @classmethod
        def toolsets(cls, config):
            return [vf.Toolset]

    class Refused(SumEnv):
        made = Served(vf.TasksetConfig())

        @classmethod
        def taskset(cls, split):
            return cls.made

    class Other(Refused):
        made = "gsm8k"

    with pytest.raises(ValueError, match="Served needs tool servers: toolsets"):
        make(Refused)
    with pytest.raises(ValueError, match=r"Other\.taskset must return a Taskset"):
        make(Other)


class LateTask(SumTask):
    async def setup(self, trace, runtime):
        await asyncio.sleep(60)


class OverTask(ReadyTask):
    @vf.stop
    async def at_once(self, trace: vf.Trace) -> bool:
        return True


@pytest.mark.parametrize(
    ("task", "says"),
    [
        (LateTask(SumData(prompt="?", answer=1, timeout={"setup": 0.01})), "TimeoutError"),
        (OverTask(SumData(prompt="?", answer=1)), "at_once stops it before a turn"),
    ],
)
def test_an_episode_that_cannot_start_is_a_failure(task, says):
    with pytest.raises(envs.EnvFailure, match=says):
        make(env_of(task)).reset(seed=0)


def divided(questions, key=None):
    """The split of each question of a task set, by its position."""

    class Keyed(SumTask):
        pass

    if key is not None:
        Keyed.key = property(key)

    class Asked(SumTasks):
        def load(self):
            for place, (question, answer) in enumerate(questions):
                yield Keyed(SumData(prompt=question, answer=answer, id=f"row-{place}"))

    class Divided(SumEnv):
        @classmethod
        def taskset(cls, split):
            return Asked(vf.TasksetConfig())

    splits = ("train", "validation", "test")
    return {task.data.idx: split for split in splits for task in make(Divided, split=split).tasks}


def test_equal_questions_are_in_one_split_and_a_new_one_moves_no_other():
    questions = [(f"{n} + 1", n + 1) for n in range(120)]
    twice = divided([*questions, ("new", 0), *questions])
    assert [twice[n] for n in range(120)] == [twice[n + 121] for n in range(120)]
    once = divided(questions)
    assert [twice[n] for n in range(120)] == [once[n] for n in range(120)]
    assert 80 < sum(split == "train" for split in once.values()) < 110
    tens = divided(questions, lambda task: str((task.data.answer - 1) // 10))
    assert [tens[10 * n] for n in range(12)] == [tens[10 * n + 9] for n in range(12)]


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
