"""Any tool, called in a syntax that was made for another."""

from __future__ import annotations

import json
from enum import Enum

import pytest

import tools
from tools.calls import tool_rules, with_tools
from tools.syntax import FENCED, JSON_CALL, RE_SEARCH, RE_TOOL, SEARCH_R1, SYNTAXES, TAGS


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@tools.tool
def convert(amount: float, unit: str = "km") -> str:
    """Convert a length
    to metres.

    Args:
        amount: How much.
        unit: One of m and km.
    """
    return f"{amount * {'m': 1, 'km': 1000}[unit]:g} m"


@tools.tool
def echo(text: str) -> str:
    """Say it again.

    Args:
        text: What.
    """
    return text


@tools.tool
def double(number: int) -> str:
    """Twice a number.

    Args:
        number: Which.
    """
    return str(2 * number)


@tools.tool
def now() -> str:
    """The hour."""
    return "noon"


ALL = {tool.name: tool for tool in (convert, echo, double, now)}


@pytest.mark.parametrize("syntax", [RE_SEARCH, TAGS, SEARCH_R1], ids=lambda s: s.name)
@pytest.mark.parametrize(
    ("text", "tool", "arguments"),
    [
        ("<echo> a b </echo>", "echo", {"text": "a b"}),
        ('<echo> {"text": "a"} </echo>', "echo", {"text": '{"text": "a"}'}),
        ("<echo></echo>", "echo", {"text": ""}),
        ('<convert> {"amount": 2, "unit": "m"} </convert>', "convert", {"amount": 2, "unit": "m"}),
        ("<double> 21 </double>", "double", {"number": 21}),
        ('<double>{"number": 21}</double>', "double", {"number": 21}),
        ("<double> many </double>", "double", {"number": "many"}),
        ("<now></now>", "now", {}),
        ("<now> </now>", "now", {}),
    ],
)
def test_between_tags(syntax, text, tool, arguments):
    call = with_tools(syntax, ALL).parse(f"hm {text} <echo>unseen</echo>")
    assert call is not None
    assert (call.tool, call.arguments, call.error) == (tool, arguments, None)
    assert call.end == len(f"hm {text}")


@pytest.mark.parametrize("inside", ["2", "[2]", '"km"', "2 km", "{'amount': 2}", "[" * 100_000])
def test_several_arguments_are_json_or_a_mistake(inside):
    call = with_tools(TAGS, ALL).parse(f"<convert>{inside}</convert> x")
    assert call is not None
    assert call.error == ("convert takes its arguments as JSON, an object with amount, unit")
    assert (call.tool, call.arguments) == ("", {})
    assert call.end == len(f"<convert>{inside}</convert>")


@pytest.mark.parametrize(
    ("inside", "arguments"),
    [
        ("ls -l", {"command": "ls -l"}),
        ('{"command": "ls", "timeout": 5}', {"command": "ls", "timeout": 5}),
        ('{"timeout": 5}', {"command": '{"timeout": 5}'}),
        ('{"command": "ls", "x": 1}', {"command": '{"command": "ls", "x": 1}'}),
        ('{"command": "echo </shell>", "timeout": 2}', {"command": "echo </shell>", "timeout": 2}),
    ],
)
def test_one_required_text_may_stand_alone(inside, arguments):
    @tools.tool
    def shell(command: str, timeout: int = 1) -> str:
        """Run.

        Args:
            command: What.
            timeout: How long.
        """
        return command

    call = with_tools(TAGS, {"shell": shell}).parse(f"<shell> {inside} </shell>")
    assert call is not None and (call.arguments, call.error) == (arguments, None)
    rules = tool_rules(TAGS, {"shell": shell})
    assert '<shell> command </shell> or <shell> {"command": "string", "timeout"' in rules


def test_the_syntaxes_own_calls_are_as_they_were():
    syntax = with_tools(RE_SEARCH, ALL)
    for text in ("<search> a </search> <echo> b </echo>", "</search>", "<search>", "plain"):
        assert syntax.parse(text) == RE_SEARCH.parse(text)
    assert syntax.stop == ("</search>", "</convert>", "</echo>", "</double>", "</now>")
    assert syntax.wrap("x") == RE_SEARCH.wrap("x")
    assert with_tools(RE_TOOL, {"python": echo}) is RE_TOOL
    for same in SYNTAXES.values():
        assert with_tools(same, {}) is same


def test_in_a_fenced_block():
    syntax = with_tools(FENCED, ALL)
    assert syntax.stop == FENCED.stop
    call = syntax.parse('so\n```convert\n{"amount": 2}\n```\nmore')
    assert call is not None and (call.tool, call.arguments) == ("convert", {"amount": 2})
    call = syntax.parse("```search\nwords\n```\n")
    assert call is not None and (call.tool, call.arguments) == ("search", {"query": "words"})
    call = syntax.parse("```shout\nwords\n```\n")
    assert call is not None and call.error is not None and "convert, echo" in call.error


def test_python_in_a_fenced_block_gets_the_right_form():
    python = tools.make("python")
    assert tool_rules(FENCED, {"python": python}).startswith(
        "To call python, write ```python\ncode"
    )
    call = with_tools(FENCED, {"python": python}).parse("```python\n1 + 1\n```\n")
    assert call is not None and (call.tool, call.arguments) == ("python", {"code": "1 + 1"})


def test_json_names_its_tools_itself():
    assert with_tools(JSON_CALL, ALL) is JSON_CALL


def test_a_name_that_is_no_tag_is_refused():
    with pytest.raises(ValueError, match="tool 'a b' needs a name of letters"):
        with_tools(TAGS, {"a b": echo})


def test_rules_name_the_values_there_are_and_what_may_be_left_out():
    @tools.tool
    def paint(colour: Colour, coats: int | None = None, undo: Colour | None = None) -> str:
        """Paint.

        Args:
            colour: Which.
            coats: How many.
            undo: What to take off.
        """
        return f"{colour} {coats} {undo}"

    (rule,) = tool_rules(TAGS, {"paint": paint}).splitlines()
    assert '{"colour": "red or blue", "coats": "integer", "undo": "red or blue"}' in rule
    assert rule.endswith(
        "colour: Which. coats (optional): How many. undo (optional): What to take off."
    )


def test_rules_say_how_each_is_called():
    assert tool_rules(TAGS, ALL).splitlines() == [
        'To call convert, write <convert> {"amount": "number", "unit": "string"} </convert> and '
        "read what stands after it. Convert a length to metres. amount: How much. "
        "unit (optional): One of m and km.",
        "To call echo, write <echo> text </echo> and read what stands after it. Say it again. "
        "text: What.",
        "To call double, write <double> number </double> and read what stands after it. Twice a "
        "number. number: Which.",
        "To call now, write <now> {} </now> and read what stands after it. The hour.",
    ]
    assert tool_rules(FENCED, {"echo": echo}).startswith(
        "To call echo, write ```echo\ntext\n``` and read"
    )
    assert tool_rules(RE_TOOL, {"python": echo}) == tool_rules(TAGS, {}) == ""


def test_rules_of_json_are_schemas():
    start, opening, schema, closing = tool_rules(JSON_CALL, {"convert": convert}).splitlines()
    assert (start, opening, closing) == (
        "You may call these functions, too:",
        "<tools>",
        "</tools>",
    )
    function = json.loads(schema)["function"]
    assert function["name"] == "convert"
    assert list(function["parameters"]["properties"]) == ["amount", "unit"]
