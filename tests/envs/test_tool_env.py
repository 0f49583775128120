"""Tools that an option names, inside the environments whose agents call tools."""

from __future__ import annotations

import asyncio
import json

import pytest

import envs
import tools
from envs.checks.probe import Probe
from envs.checks.rules import RULES
from envs.episode import EnvFailure, NotForkable
from envs.play import aplay, gold_of, play
from envs.record import Recorder
from envs.search.protocol import PROTOCOLS
from tools.registry import UnknownNameError
from tools.syntax import TAGS
from tools.tool import Tool, ToolContext, ToolFailure, ToolResult

TAGGED = [name for name, row in PROTOCOLS.items() if row.syntax.form == "tags"]
SYNTAXES = [(syntax, variant) for syntax, row in PROTOCOLS.items() for variant in row.pay]


class Tally(Tool):
    """Adds up numbers for each episode; keeps them by session."""

    name = "tally"
    description = "Add a number to the sum."
    parameters = {  # noqa: RUF012
        "type": "object",
        "properties": {"number": {"type": "integer"}},
        "required": ["number"],
    }
    stateful = True
    latest: Tally

    def __init__(self):
        self.sums, self.log = {}, []
        Tally.latest = self

    async def __call__(self, arguments, context=None):
        session = (context or ToolContext()).session
        number = arguments["number"]
        if not isinstance(number, int):
            return ToolResult("Error: a number!", error="a number!")
        if number == 777:
            return "many"
        if number == 888:
            raise KeyError(number)
        self.log.append(number)
        self.sums[session] = self.sums.get(session, 0) + number
        return ToolResult(f"sum {self.sums[session]}", cost=0.5)

    async def open(self):
        self.log.append("open")

    async def close(self):
        self.log.append("close")

    async def fork(self, session, twin):
        self.sums[twin] = self.sums.get(session, 0)

    async def end(self, session):
        self.sums.pop(session, None)


@tools.tool
async def sleepy(seconds: float) -> str:
    """Sleep.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return "awake"


@tools.tool
def away(reason: str) -> str:
    """Never there.

    Args:
        reason: Why.
    """
    raise ToolFailure(reason, retryable=True)


for _name, _target in (("tally", Tally), ("sleepy", sleepy), ("away", away)):
    tools.register(f"test-{_name}", _target)


def call_of(syntax, tool, inside, **arguments):
    if syntax in ("json", "chat"):
        return f"<tool_call>{json.dumps({'name': tool, 'arguments': arguments})}</tool_call>"
    if syntax == "fenced":
        return f"```{tool}\n{inside}\n```\n"
    think = "" if syntax == "r1-searcher" else "<think> x </think> "
    return f"{think}<{tool}> {inside} </{tool}>"


@pytest.mark.parametrize(("syntax", "variant"), SYNTAXES)
def test_in_search_qa_it_answers_in_every_syntax_and_costs_no_format(syntax, variant):
    env = envs.make(
        "search-qa", syntax=syntax, variant=variant, tools="calculator, test-tally", max_turns=6
    )
    shown = f"{env.system_prompt}{env.tool_schemas}"
    assert "calculator" in shown and "tally" in shown
    gold = gold_of(env)
    question, _ = env.reset(seed=0)
    sums = env.step(call_of(syntax, "calculator", "2^10", expression="2^10"))
    assert "1024" in sums.observation
    assert "sum 3" in env.step(call_of(syntax, "tally", "3", number=3)).observation
    last = env.step(gold(question))
    (search,) = last.info["tool_calls"]
    assert search.name == "search"
    while not last.terminated:
        last = env.step(gold(last.observation))
    assert last.reward == env.reward_range[1]
    assert last.info["scores"]["format"] == 1.0
    assert last.info["scores"]["tool_cost"] == 0.5
    (record,) = sums.info["tool_calls"]
    assert (record.name, record.arguments) == ("calculator", {"expression": "2^10"})
    env.close()


class Squares(envs.ToolEnv[int, int]):
    """Say the square of a number."""

    def __init__(self, options, services=None):
        tasks = range(("train", "validation", "test").index(options.split), 3000, 3)
        super().__init__(options, tasks, services, syntax=TAGS)
        self.stop, self.continues = self.syntax.stop, self.syntax.continues

    def begin(self, task):
        self.state = task
        return f"What is {task} squared?"

    async def turn(self, action):
        called = self.syntax.parse(action)
        if called is None:
            return envs.finish({"right": float(action.strip() == str(self.state**2))})
        result, record = await self.call(called)
        return envs.go_on(self.syntax.wrap(result.text), tool_calls=[record])

    def gold_policy(self):
        return lambda question: str(int(question.split()[2]) ** 2)


class PromptedSquares(Squares):
    system_prompt = "Answer with a number alone."


class SilentSquares(Squares):
    def __init__(self, options, services=None):
        super().__init__(options, services)
        self.system_prompt = "Answer with a number alone."


@pytest.mark.parametrize(("kind", "begins"), [(Squares, ""), (PromptedSquares, "Answer with")])
def test_an_environment_that_says_nothing_of_tools_announces_them(kind, begins):
    env = kind(envs.ToolOptions(tools="calculator, test-tally", max_turns=3))
    assert env.system_prompt.startswith(begins or "To call calculator, write <calculator>")
    assert env.system_prompt.endswith(env.tool_rules)
    assert "To call tally, write <tally> number </tally>" in env.tool_rules
    envs.check_env(env, num_tasks=1)
    env.close()
    assert kind(envs.ToolOptions()).system_prompt == kind.system_prompt
    without = kind(envs.ToolOptions(tools="calculator", instructions=False, max_turns=3))
    assert without.system_prompt == kind.system_prompt


def test_the_check_fails_an_environment_whose_tools_the_model_never_reads_of():
    env = SilentSquares(envs.ToolOptions(tools="calculator, test-tally", max_turns=3))
    with pytest.raises(envs.CheckFailed) as failed:
        envs.check_env(env, num_tasks=1)
    env.close()
    found = failed.value.violations
    assert [v.partition(": ")[0] for v in found] == ["tools", "tools"]
    assert "'calculator'" in found[0] and "'tally'" in found[1]
    taught = SilentSquares(envs.ToolOptions(tools="calculator", instructions=False, max_turns=3))
    envs.check_env(taught, num_tasks=1)
    taught.close()


@pytest.mark.parametrize(("syntax", "variant"), SYNTAXES)
def test_every_syntax_of_search_qa_announces_its_tools(syntax, variant):
    env = envs.make("search-qa", syntax=syntax, variant=variant, tools="calculator", max_turns=6)
    assert list(RULES["tools"](Probe(env, (0,), 0))) == []
    env.close()


@pytest.mark.parametrize("options", [{"syntax": "json"}, {"top_n": 2}, {"syntax": "fenced"}])
def test_search_qa_with_tools_keeps_the_contract(options):
    env = envs.make("search-qa", tools="calculator, test-tally", **options)
    envs.check_env(env, num_tasks=1)
    env.close()


def test_in_math_it_answers_in_place():
    env = envs.make("math", tools="calculator, test-tally", max_turns=4)
    assert env.stop == ("</calculator>", "</tally>")
    assert env.system_prompt.startswith("To call calculator, write <calculator> expression")
    env.reset(options={"task": 0})
    assert env.step("<tally>2</tally>").observation == " <result> sum 2 </result> "
    assert env.step("<calculator>2/4</calculator>").observation == " <result> 1/2 = 0.5 </result> "
    last = env.step(rf"\boxed{{{env.state.task.answer}}}")
    assert (last.reward, last.terminated) == (1.0, True)
    assert Tally.latest.sums == {}, "an episode that is over keeps nothing"
    env.close()
    assert Tally.latest.log == ["open", 2, "close"]


@pytest.mark.parametrize("asynchronous", [False, True])
async def test_forks_and_snapshots_keep_what_a_tool_knows(asynchronous):
    env = envs.make("math", tools="test-tally", max_turns=9)

    async def do(method, *arguments):
        one, name = method
        if asynchronous:
            return await getattr(one, f"a{name}")(*arguments)
        # The synchronous API waits for its own loop: not on this one.
        return await asyncio.to_thread(getattr(one, name), *arguments)

    async def add(one, number):
        return (await do((one, "step"), f"<tally>{number}</tally>")).observation.split()[2]

    await do((env, "reset"))
    assert await add(env, 1) == "1"
    before = await do((env, "snapshot"))
    twin = await do((env, "fork"))
    assert [await add(env, 10), await add(twin, 100), await add(env, 10)] == ["11", "101", "21"]
    log = Tally.latest.log
    assert log == ["open", 1, 10, 100, 10], "a copy repeats nothing"
    (other,) = env.group(1)
    await do((other, "restore"), before)
    assert await add(other, 1000) == "1001"
    assert log[5:] == [1, 1000], "a restored environment repeats the calls"
    await do((env, "restore"), before)
    again = await do((env, "snapshot"))
    assert await add(env, 5) == "6"
    await do((env, "restore"), again)
    assert await add(env, 5) == "6", "what was not called yet again is in the snapshot, too"
    await do((env, "reset"))
    assert await add(env, 7) == "7"
    assert len(Tally.latest.sums) == 3
    for one in (twin, other, env):
        await do((one, "close"))
    assert Tally.latest.sums == {}
    assert log[-1] == "close"
    assert log.count("close") == 1


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("math", {"tools": "calculator", "max_turns": 4}),
        ("mix", {"of": "math(tools=calculator, max_turns=4) + mastermind"}),
    ],
)
async def test_a_forks_calls_stand_in_its_own_record(name, options):
    env = envs.make(name, **options)
    env.tool_tap = Recorder()
    await env.areset(seed=0, options={"task": 0})
    await env.astep("<calculator>1 + 1</calculator>")
    twin = await env.afork()
    await twin.astep("<calculator>2 + 2</calculator>")
    texts = [[call.text for call in one.tool_tap.calls] for one in (env, twin)]
    assert texts == [["2"], ["2", "4"]]
    await env.astep("<calculator>3 + 3</calculator>")
    assert [call.text for call in twin.tool_tap.calls] == ["2", "4"]
    for one in (env, twin):
        await one.aclose()


async def test_what_a_tool_cannot_copy_has_no_forks(monkeypatch):
    """Said from the first turn on: what is there to copy only begins with the first call."""
    monkeypatch.setattr(Tally, "forkable", False)
    env = envs.make("math", tools="test-tally", max_turns=9)
    await env.areset(seed=0)
    message = r"^math-v0: tool 'test-tally' cannot copy an episode's state$"
    with pytest.raises(NotForkable, match=message.replace("test-tally", "tally")):
        await env.afork()
    with pytest.raises(NotForkable, match="cannot copy"):
        env.fork()
    await env.aclose()


async def test_a_copy_that_fails_in_the_middle_leaves_nothing_behind(monkeypatch):
    async def away(self, session, twin):
        self.sums[twin] = 0
        raise ToolFailure("the copier is away", retryable=True)

    monkeypatch.setattr(Tally, "fork", away)
    env = envs.make("math", tools="test-tally", max_turns=9)
    await env.areset(seed=0)
    await env.astep("<tally>1</tally>")
    holders = env._lease._own.holders
    with pytest.raises(EnvFailure, match="the copier is away"):
        await env.afork()
    assert env._lease._own.holders == holders
    await env.aclose()
    assert Tally.latest.log[-1] == "close"


def test_a_snapshot_of_another_environment_is_refused():
    math, search = envs.make("math", tools="calculator", max_turns=2), envs.make("search-qa")
    math.reset(seed=0)
    search.reset(seed=0)
    with pytest.raises(ValueError, match="'search-qa-v0' cannot restore a snapshot of 'math-v0'"):
        search.restore(math.snapshot())


@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("<tally>many</tally>", "Error: a number!"),
        ("<sleepy>long</sleepy>", "Error: sleepy: seconds: Input should be a valid number"),
        ("<sleepy></sleepy>", "Error: sleepy: seconds: Input should be a valid number"),
    ],
)
def test_mistakes_are_reported_to_the_agent(call, says):
    env = envs.make("search-qa", tools="test-tally, test-sleepy")
    env.reset(seed=0)
    step = env.step(call)
    assert says in step.observation
    (record,) = step.info["tool_calls"]
    assert record.error is not None and record.text.startswith("Error: ")
    assert not step.terminated
    env.close()


def test_an_unknown_tool_is_answered_with_the_known_ones():
    env = envs.make("search-qa", tools="calculator", syntax="json")
    env.reset(seed=0)
    step = env.step(call_of("json", "shout", ""))
    assert "there is no tool 'shout'; there is: search, calculator" in step.observation
    env.close()


@pytest.mark.parametrize("name", ["search-qa", "math"])
@pytest.mark.parametrize(
    ("call", "says"),
    [
        ("<away>the line is dead</away>", "the line is dead"),
        ("<sleepy>60</sleepy>", "took longer|waited longer"),
    ],
)
async def test_a_tool_at_fault_is_a_failure_and_no_reward(name, call, says):
    env = envs.make(name, tools="test-away, test-sleepy", max_turns=2, step_timeout_s=0.2)
    await env.areset(seed=0)
    with pytest.raises(EnvFailure, match=says) as failed:
        await env.astep(call)
    assert failed.value.retryable
    await env.aclose()


async def test_whatever_a_tool_raises_is_a_failure():
    env = envs.make("math", tools="test-tally", max_turns=3)
    for call, says in (
        ("<tally>888</tally>", "tool 'tally' failed: KeyError: 888"),
        ("<tally>777</tally>", "tool 'tally' failed: TypeError: it returned str, not a ToolResult"),
    ):
        await env.areset(seed=0, options={"task": 0})
        with pytest.raises(EnvFailure, match=says) as failed:
            await env.astep(call)
        assert not failed.value.retryable
    await env.aclose()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"tools": "calculator", "max_turns": 1},
            r"tools \(calculator\) need max_turns \(1\) >= 2",
        ),
        ({"tools": "calculator(x=1)"}, r"tools \(calculator\(x=1\)\): tool 'calculator' has no"),
        ({"tools": "search"}, "tool 'search' needs the option 'retriever'"),
        ({"tools": "a b"}, "expected names such as calculator"),
    ],
)
def test_options_out_of_range(options, says):
    with pytest.raises(ValueError, match=says):
        envs.make("search-qa", **options)


def test_an_unknown_name_is_one():
    with pytest.raises(UnknownNameError, match=r"unknown tool 'tally'\. Did you mean 'test-tally'"):
        envs.make("math", tools="tally", max_turns=2)


@pytest.mark.parametrize(
    ("env_id", "options", "name", "says"),
    [
        ("search-qa", {}, "search", "the environment has a 'search' already"),
        ("math", {}, "verifier", "the environment has a 'verifier' already"),
        ("math", {}, "think", "needs another name: the tag <think> is reserved"),
        *(("search-qa", {"syntax": s}, "answer", "<answer> is reserved") for s in TAGGED),
    ],
)
def test_a_tool_called_like_something_else_is_refused(env_id, options, name, says):
    @tools.tool(name=name)
    def other(query: str) -> str:
        """Another.

        Args:
            query: What.
        """
        return query

    registered = f"test-{name}-of-{env_id}-{options.get('syntax', '')}"
    tools.register(registered, other)
    with pytest.raises(ValueError, match=says):
        envs.make(env_id, tools=registered, max_turns=2, **options)


def test_a_tool_that_cannot_be_made_is_reported_in_one_line():
    with pytest.raises(ValueError, match=r"tools \(mcp\(.*does not start") as raised:
        envs.make("math", tools="mcp(command='/no/such/server')", max_turns=2)
    assert "\n" not in str(raised.value)


async def test_episodes_share_the_tool_and_nothing_else():
    kind = envs.env_type("math")
    options = kind.Options(tools="test-tally", max_turns=3)
    async with kind.open_services(options) as services:
        members = [envs.make_from("math-v0", options, services) for _ in range(16)]

        def author(number):
            def act(observation):
                return (
                    rf"\boxed{{{number}}}" if "sum" in observation else f"<tally>{number}</tally>"
                )

            return act

        played = await asyncio.gather(
            *(aplay(one, author(i), task=0) for i, one in enumerate(members))
        )
        said = [p.steps[0].observation for p in played]
        assert said == [f" <result> sum {i} </result> " for i in range(16)]
        assert services["tally"].sums == {}
    assert services["tally"].log[-1] == "close"


def test_the_gold_policy_of_an_episode_with_tools_needs_none():
    env = envs.make("search-qa", tools="calculator")
    assert play(env, gold_of(env), seed=0).reward == 1.0
    env.close()
