"""The python tool: an interpreter for each episode, and what a model reads of it."""

from __future__ import annotations

import asyncio

import backends
import pytest

import tools
from rl.runtime.isolation import Confining
from tools.builtin.python import NOTHING_SHOWN, PythonTool
from tools.sandbox import Limits, SandboxUnavailable, make_sandbox
from tools.tool import ToolContext, ToolFailure

ONE, TWO = ToolContext(session="one"), ToolContext(session="two")


@pytest.fixture
async def sandbox():
    made = make_sandbox("auto", Limits(wall_s=5.0))
    try:
        await made.start()
    except SandboxUnavailable as error:
        backends.missing("auto", str(error))
    yield made
    await made.close()


@pytest.fixture
async def python(sandbox):
    made = tools.make("python", sandbox=sandbox)
    yield made
    await made.close()
    assert sandbox.executor.session_permits.in_flight == 0


async def text(python, code, context=ONE):
    return (await python({"code": code}, context)).text


async def test_it_is_registered_and_described(python):
    assert "python" in tools.names()
    assert isinstance(python, PythonTool)
    assert python.name == "python"
    assert list(python.parameters["properties"]) == ["code"]
    assert python.parameters["required"] == ["code"]
    assert "variables" in python.description


async def test_each_episode_has_variables_of_its_own(python):
    assert await text(python, "x = 1", ONE) == NOTHING_SHOWN
    await text(python, "x = 2", TWO)
    assert [await text(python, "x", one) for one in (ONE, TWO)] == ["1", "2"]


async def test_without_an_episode_nothing_is_kept(python, sandbox):
    assert await text(python, "x = 1\nx", None) == "1"
    assert "NameError" in await text(python, "x", None)
    assert sandbox.executor.session_permits.in_flight == 0


async def test_output_value_and_traceback_are_what_a_notebook_shows(python):
    result = await python({"code": "print('out')\n6 * 7"}, ONE)
    assert (result.text, result.error) == ("out\n42", None)
    assert (result.data["status"], result.data["value"]) == ("ok", "42")
    result = await python({"code": "print('out')\n1 / 0"}, ONE)
    assert result.text.startswith('out\nTraceback (most recent call last):\n  File "<cell 2>"')
    assert result.error == "ZeroDivisionError: division by zero"


async def test_bad_arguments_are_observations(python):
    assert (await python({"source": "1"}, ONE)).text.startswith(
        "Error: python: code: Field required"
    )


async def test_a_long_result_loses_its_middle(sandbox):
    python = PythonTool(sandbox, max_chars=100)
    shown = await text(python, "print('a' * 500 + 'b' * 500)")
    assert shown == "a" * 50 + "\n[900 characters left out]\n" + "b" * 50
    await python.close()
    with pytest.raises(ValueError, match=r"max_chars \(5\)"):
        PythonTool(sandbox, max_chars=5)
    with pytest.raises(ValueError, match="idle_s"):
        PythonTool(sandbox, idle_s=0)


async def test_a_crash_is_reported_and_the_next_call_starts_anew(python):
    await text(python, "x = 1")
    result = await python({"code": "print('bye')\nimport os; os._exit(3)"}, ONE)
    assert result.text == (
        "bye\n[the interpreter has ended: it exited with code 3; the next call starts another, "
        "without variables]"
    )
    assert result.error == "it exited with code 3"
    assert "NameError" in await text(python, "x")


async def test_an_interrupt_is_reported_and_variables_are_kept():
    async with make_sandbox("auto", Limits(wall_s=2.5)) as sandbox:
        python = PythonTool(sandbox)
        await text(python, "x = 1")
        shown = await text(python, "while True: pass")
        assert shown.endswith(
            "KeyboardInterrupt\n[interrupted: the code took longer than 2.5 s; variables are kept]"
        )
        assert await text(python, "x") == "1"


async def test_an_idle_interpreter_ends_and_another_starts(sandbox):
    python = PythonTool(sandbox, idle_s=0.2)
    await text(python, "x = 1")
    await asyncio.sleep(0.6)
    assert "NameError" in await text(python, "x")
    await python.close()


async def test_episodes_fork_and_end(python, sandbox):
    await text(python, "x = [1]")
    await python.fork("one", "two")
    await text(python, "x.append(2)", TWO)
    assert [await text(python, "x", one) for one in (ONE, TWO)] == ["[1]", "[1, 2]"]
    await python.end("one")
    await python.end("one")
    assert await text(python, "x", TWO) == "[1, 2]"
    await python.fork("unknown", "two")
    assert "NameError" in await text(python, "x", TWO)


async def test_a_sandbox_that_fails_is_a_failure_to_try_again(python, sandbox):
    run = asyncio.create_task(text(python, "import time; time.sleep(4)"))
    await asyncio.sleep(0.5)
    for link in list(sandbox.executor.links):
        link.close()
    with pytest.raises(ToolFailure, match="state is lost") as caught:
        await run
    assert caught.value.retryable
    assert await text(python, "1") == "1"


async def test_tools_that_keep_nothing_have_nothing_to_end():
    @tools.tool
    async def echo(word: str) -> str:
        """Say it again.

        Args:
            word: What to say.
        """
        return word

    await echo.fork("one", "two")
    await echo.end("one")
    assert (await echo({"word": "a"}, ONE)).text == "a"


async def test_it_opens_a_sandbox_of_its_own_and_closes_it():
    python = tools.make("python", sandbox="unsafe-local", wall_s=2.0, memory_mb=128)
    assert list(python.parameters["properties"]) == ["code"], "known before it is open"
    with pytest.raises(ToolFailure, match=r"await open\(\) first"):
        await python({"code": "1"}, ONE)
    with pytest.warns(UserWarning, match="unconfined"):
        await python.open()
    assert await text(python, "x = 3\nx") == "3"
    assert (python.backend, python.isolation) == ("unsafe-local", "none")
    assert isinstance(python, Confining), "a run refuses it unless allow_unsafe is said"
    sandbox = python._sandbox
    assert (sandbox.limits.wall_s, sandbox.limits.memory_mb) == (2.0, 128)
    await python.close()
    await python.close()
    assert sandbox.executor.session_permits.in_flight == 0
    with pytest.raises(RuntimeError, match="the sandbox is closed"):
        await sandbox.run("1")
    with pytest.raises(ToolFailure, match=r"await open\(\) first"):
        await python({"code": "1"}, ONE)


@pytest.mark.parametrize("options", [{"wall_s": -1.0}, {"memory_mb": 0}, {"max_chars": 1}])
def test_its_options_have_ranges(options):
    with pytest.raises(ValueError, match=next(iter(options))):
        tools.make("python", **options)
