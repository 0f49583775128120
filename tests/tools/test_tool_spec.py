"""Tools as one word of a command line."""

from __future__ import annotations

import pytest

import tools
from tools import registration
from tools.registration import make_tools
from tools.registry import Registry, UnknownNameError


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """A registry with three tools, one of them made with options."""
    registry = Registry("tool", "turnwise.no-tools")

    @tools.tool
    def echo(text: str) -> str:
        """Say it again.

        Args:
            text: What.
        """
        return text

    def lookup(limit: int = 1, words: tuple[str, ...] = ()) -> tools.Tool:
        @tools.tool(name=f"lookup_{limit}{''.join(words)}")
        def made(query: str) -> str:
            """Look it up.

            Args:
                query: What.
            """
            return query

        return made

    registry.register("echo", echo)
    registry.register("their-echo.v2", echo)
    registry.register("lookup", lookup)
    monkeypatch.setattr(registration, "_registry", registry)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("", []),
        ("  ", []),
        ("echo", ["echo"]),
        (" their-echo.v2 ", ["echo"]),
        ("echo,lookup", ["echo", "lookup_1"]),
        ("lookup(limit=3), echo", ["lookup_3", "echo"]),
        ("lookup(limit=3, words=('a', ')', 'b,')) , echo", ["lookup_3a)b,", "echo"]),
        ("lookup(), lookup(limit=-2)", ["lookup_1", "lookup_-2"]),
    ],
)
def test_names_and_their_options(text, made):
    assert list(make_tools(text)) == made


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("echo,", "expected names such as calculator, lookup"),
        (",", "expected names"),
        ("echo echo", "expected names"),
        ("3", "expected names"),
        ("lookup(3)", "expected names"),
        ("lookup(limit=3", "expected names"),
        ("lookup(**{})", "expected names"),
        ("lookup(limit=x)", "malformed node"),
        ("lookup(limit=3, limit=4)", "limit is given twice"),
        ("lookup(most=3)", "tool 'lookup' has no option 'most'.* Known: limit, words"),
        ("echo(limit=3)", "tool 'echo' has no options, yet 'limit' was given"),
        ("echo, their-echo.v2", "two of them are called 'echo'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(text, says):
    with pytest.raises(ValueError, match=rf"env.tools \(.*\): .*{says}") as raised:
        make_tools(text, "env.tools")
    assert "\n" not in str(raised.value)


def test_an_unknown_name_is_one():
    with pytest.raises(UnknownNameError, match=r"unknown tool .ecko.\. Did you mean .echo."):
        make_tools("ecko")
