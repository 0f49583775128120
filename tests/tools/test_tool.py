"""Tools from functions: checked when made, readable mistakes, typed failures."""

from __future__ import annotations

import asyncio
import threading
from typing import Literal

import pytest

import tools
from tools import BadArguments, ToolContext, ToolFailure, ToolResult


@tools.tool
def add(a: int, b: int = 1, mode: Literal["plain", "loud"] = "plain") -> str:
    """Add two numbers.

    The sum is exact.

    Args:
        a: The first number,
            of any size.
        b (int): The second.
        mode: How it is said.

    Returns:
        The sum.
    """
    total = str(a + b)
    return total + "!" if mode == "loud" else total


def test_schema_says_what_the_function_says():
    assert add.name == "add"
    assert add.description == "Add two numbers.\n\nThe sum is exact."
    properties = add.parameters["properties"]
    assert properties["a"]["type"] == "integer"
    assert properties["a"]["description"] == "The first number, of any size."
    assert properties["b"]["default"] == 1
    assert properties["mode"]["enum"] == ["plain", "loud"]
    assert add.parameters["required"] == ["a"]
    assert add.parameters["additionalProperties"] is False


@pytest.mark.parametrize("given", ['{"a": 2}', None, [1]])
async def test_arguments_that_are_no_object_are_a_mistake(given):
    kind = type(given).__name__
    answer = await add(given)
    assert answer.error == f"add: arguments must be an object, by name, not a {kind}"


async def test_call_answers_in_text_and_data():
    assert await add({"a": 2, "b": 3, "mode": "loud"}) == ToolResult("5!", data="5!")
    assert (await add({"a": "41"})).text == "42", "a number in quotes is what models write"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "a: Field required"),
        ({"a": "many"}, "a: Input should be a valid integer"),
        ({"a": 1, "c": 2}, "c: Extra inputs are not permitted"),
        ({"a": 1, "mode": "x"}, "mode: Input should be 'plain' or 'loud'"),
    ],
)
async def test_bad_arguments_are_reported_to_the_model(arguments, says):
    result = await add(arguments)
    assert result.error is not None and says in result.error
    assert result.text == f"Error: {result.error}"
    assert "It takes: a, b, mode." in result.error


async def test_function_may_refuse_arguments_and_answer_in_full():
    @tools.tool(name="half")
    async def halve(number: int) -> ToolResult:
        """Halve.

        Args:
            number: An even number.
        """
        if number % 2:
            raise BadArguments(f"{number} is odd")
        return ToolResult("done", data=number // 2, cost=0.5)

    assert halve.name == "half"
    assert await halve({"number": 4}) == ToolResult("done", data=2, cost=0.5)
    assert (await halve({"number": 3})).error == "3 is odd"


async def test_a_bug_is_a_failure_not_an_observation():
    @tools.tool
    def broken(x: int) -> str:
        """Break.

        Args:
            x: Anything.
        """
        raise KeyError(x)

    @tools.tool
    def offline() -> str:
        """Fail, in a way that may pass."""
        raise ToolFailure("the library is offline", retryable=True)

    with pytest.raises(ToolFailure, match="'broken' failed: KeyError: 7") as bug:
        await broken({"x": 7})
    assert not bug.value.retryable
    with pytest.raises(ToolFailure, match="offline") as outage:
        await offline({})
    assert outage.value.retryable


@pytest.mark.parametrize(
    ("does", "says"),
    [
        (SystemExit(2), "SystemExit: 2"),
        (asyncio.CancelledError("its own"), "CancelledError: its own"),
        (None, "it returned NoneType, not text"),
        (ToolResult(5), "it returned int, not text"),  # type: ignore[arg-type]
    ],
)
async def test_whatever_else_comes_of_a_call_is_a_failure(does, says):
    @tools.tool
    async def odd() -> str:
        """Do something else."""
        if isinstance(does, BaseException):
            raise does
        return does

    with pytest.raises(ToolFailure, match=f"tool 'odd' failed: {says}"):
        await odd({})


async def test_a_call_that_its_caller_cancels_is_cancelled():
    @tools.tool
    async def slow() -> str:
        """Take a minute."""
        await asyncio.sleep(60)
        return ""

    asked = asyncio.create_task(slow({}))
    await asyncio.sleep(0)
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked


async def test_a_call_has_a_deadline_of_its_own():
    @tools.tool
    async def slow(inner: bool) -> str:
        """Wait.

        Args:
            inner: Whether the function itself gives up.
        """
        if inner:
            raise TimeoutError("my own")
        await asyncio.sleep(60)
        return "late"

    with pytest.raises(ToolFailure, match=r"the caller's deadline \(0.02 s\)") as late:
        await slow({"inner": False}, ToolContext(timeout_s=0.02))
    assert late.value.retryable
    with pytest.raises(ToolFailure, match="my own") as own:
        await slow({"inner": True}, ToolContext(timeout_s=5))
    assert not own.value.retryable, "the function's own time-out is not the call's"


async def test_blocking_runs_in_a_thread_and_context_is_hidden():
    seen = []

    @tools.tool(blocking=True)
    def where(context: ToolContext) -> str:
        """Return the session."""
        seen.append(threading.current_thread())
        return context.session

    assert (await where({}, ToolContext(session="ep-7"))).text == "ep-7"
    assert seen[0] is not threading.current_thread()
    assert "context" not in where.parameters["properties"]
    assert (await where({"context": 1})).error is not None


def _untyped(x) -> str:
    """Do.

    Args:
        x: It.
    """
    return x


def _undocumented(x: int) -> str:
    return str(x)


def _undescribed(x: int, y: int) -> str:
    """Do.

    Args:
        x: It.
        y:
    """
    return str(x + y)


def _described_too_much(x: int) -> str:
    """Do.

    Args:
        x: It.
        z: Gone.
    """
    return str(x)


def _variadic(*xs: int) -> str:
    """Do.

    Args:
        xs: Them.
    """
    return str(xs)


def _no_return(x: int):
    """Do.

    Args:
        x: It.
    """


def _wrong_return(x: int) -> int:
    """Do.

    Args:
        x: It.
    """
    return x


def _unresolved(x: Missing) -> str:  # noqa: F821
    """Do.

    Args:
        x: It.
    """
    return str(x)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (_untyped, "no type for 'x'"),
        (_undocumented, "has no docstring"),
        (_undescribed, "must describe 'y' in its docstring, under Args:"),
        (_described_too_much, "describes 'z', which is not a parameter"),
        (_variadic, r"takes \*xs"),
        (_no_return, "must be annotated to return str or ToolResult, not None"),
        (_wrong_return, "must be annotated to return str or ToolResult"),
        (_unresolved, "annotation that does not resolve: name 'Missing'"),
    ],
)
def test_a_function_that_will_not_do_is_refused_when_the_tool_is_made(function, says):
    with pytest.raises(ValueError, match=says) as error:
        tools.tool(function)
    assert f"tool '{function.__name__}'" in str(error.value)


def test_blocking_async_is_refused():
    async def wait() -> str:
        """Wait."""
        return ""

    with pytest.raises(ValueError, match="is async, so blocking=True means nothing"):
        tools.tool(blocking=True)(wait)
