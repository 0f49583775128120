"""Text formats of tool calls and of their results.

:data:`SYNTAXES` lists every syntax. Generation stops after a call, at one of the syntax's stop
strings. Depending on the syntax, the result is inserted into the model's message, which then
continues, or is a separate message.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Call:
    """A call found in a text."""

    tool: str
    arguments: Mapping[str, Any]
    end: int
    """Index in the text at which the call ends. The text after this index is ignored."""
    error: str | None = None
    """For a malformed call: a message that the model reads; ``tool`` and ``arguments`` are empty.
    None for a valid call."""
    as_texts: bool = False
    """Whether the arguments are unparsed texts. ``chat_calls.typed_call`` parses them by the tool's
    schema."""


@dataclass(frozen=True, slots=True)
class Syntax:
    """A text format of tool calls and their results."""

    name: str
    stop: tuple[str, ...]
    """Strings at which generation stops, because a call is complete."""
    parse: Callable[[str], Call | None]
    """Returns the first complete call in a text, or None."""
    wrap: Callable[[str], str]
    """Converts a tool's result to the text that the model reads."""
    continues: bool
    """Whether the result is inserted into the model's message, which then continues. If False, the
    result is a separate message."""
    tools: tuple[str, ...]
    """Names of the tools that have a special form in this syntax. ``tools.calls`` handles all other
    tools."""
    form: Literal["tags", "fence", "json", "chat"] = "tags"
    """The form of calls of the tools that are not in ``tools``."""
    find_all: Callable[[str], list[Call]] | None = None
    """Returns all calls in a message. None if only the first call in a message counts in this
    syntax."""

    def calls(self, text: str) -> list[Call]:
        """The calls in a text, in order."""
        if self.find_all is not None:
            return self.find_all(text)
        call = self.parse(text)
        return [] if call is None else [call]


_JSON_CALL = re.compile(r"<tool_call>(.*?)</tool_call>|</tool_call>", re.DOTALL)
_NO_JSON_CALL = 'a call must be JSON: <tool_call>{"name": "...", "arguments": {...}}</tool_call>'
_FENCE = re.compile(r"^```[ \t]*(\w*)[ \t]*$\n?", re.MULTILINE)
_FENCED_CODE = re.compile(r"```[ \t]*(?:python|py)?[ \t]*\n(.*?)\n?```", re.DOTALL)
_CLOSING_FENCE = re.compile(r"^```[ \t]*$\n?", re.MULTILINE)


def tagged_call(
    tag: str, closed_by: str = "", *, tool: str, argument: str
) -> Callable[[str], Call | None]:
    """Make a parser of ``<tag>text</tag>``, a call of one tool whose only argument is the text.

    A closing tag without an opening tag before it is a call with an empty argument.

    Args:
        tag: name in the opening tag.
        closed_by: name in the closing tag, or "" for ``/tag``.
        tool: the tool's name.
        argument: the argument's name.
    """
    opening, closing = f"<{tag}>", f"<{closed_by or '/' + tag}>"

    def parse(text: str) -> Call | None:
        at = text.find(closing)
        if at < 0:
            return None
        _, found, inside = text[:at].rpartition(opening)
        return Call(tool, {argument: inside.strip() if found else ""}, at + len(closing))

    return parse


def json_call(text: str) -> Call | None:
    """The first ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, Hermes's format.

    If the JSON is malformed, ``Call.error`` is set.
    """
    found = _JSON_CALL.search(text)
    if found is None:
        return None
    try:
        called = json.loads(found[1])
        name, arguments = called["name"], called["arguments"]
        if not (isinstance(name, str) and isinstance(arguments, dict)):
            raise TypeError
    except (ValueError, TypeError, LookupError, RecursionError):
        return Call("", {}, found.end(), error=_NO_JSON_CALL)
    return Call(name, arguments, found.end())


def fenced_call(arguments: Mapping[str, str]) -> Callable[[str], Call | None]:
    """Make a parser of fenced blocks whose first line names a tool.

    Args:
        arguments: for each tool, the name of the argument that gets the block's content.
    """
    known = ", ".join(arguments)

    def parse(text: str) -> Call | None:
        opening = _FENCE.search(text)
        if opening is None:
            return None
        tool, closing = opening[1], _CLOSING_FENCE.search(text, opening.end())
        if tool not in arguments and (closing is not None or not tool):
            wrong = f"a block must begin with ``` and a tool's name ({known}), not {tool!r}"
            return Call("", {}, (closing or opening).end(), error=wrong)
        if closing is None:
            return None
        content = text[opening.end() : closing.start()].strip()
        return Call(tool, {arguments[tool]: content}, closing.end())

    return parse


RE_SEARCH = Syntax(
    name="re-search",
    stop=("</search>",),
    parse=tagged_call("search", tool="search", argument="query"),
    wrap=lambda result: f" <result>\n{result}\n</result>",
    continues=True,
    tools=("search",),
)
"""ReSearch's syntax (arXiv:2503.19470): the result follows the query inside the same message."""

R1_SEARCHER = Syntax(
    name="r1-searcher",
    stop=("<|end_of_query|>",),
    parse=tagged_call("|begin_of_query|", "|end_of_query|", tool="search", argument="query"),
    wrap=lambda result: f"\n\n<|begin_of_documents|>\n{result}\n<|end_of_documents|>\n\n",
    continues=True,
    tools=("search",),
)
"""R1-Searcher's syntax (arXiv:2503.05592), with line breaks as in its experience_maker.py.

Its tags are plain text here, because no text becomes a special token.
"""

SEARCH_R1 = Syntax(
    name="search-r1",
    stop=("</search>",),
    parse=tagged_call("search", tool="search", argument="query"),
    wrap=lambda result: f"\n\n<information>{result}</information>\n\n",
    continues=True,
    tools=("search",),
)
"""Search-R1's syntax (arXiv:2503.09516)."""

FENCED_ARGUMENTS = {"search": "query", "python": "code"}
"""For each tool, the name of the argument that a fenced block holds."""

FENCED = Syntax(
    name="fenced",
    # The line break matters: without it, a second block's opening fence would halt as well.
    stop=("\n```\n",),
    parse=fenced_call(FENCED_ARGUMENTS),
    wrap=lambda result: f"<interpreter>\n{result}\n</interpreter>\n\n",
    continues=True,
    tools=("search",),
    form="fence",
)
"""A fenced block named after the tool, followed by the result."""

JSON_CALL = Syntax(
    name="json",
    stop=("</tool_call>",),
    parse=json_call,
    wrap=lambda result: f"<tool_response>\n{result}\n</tool_response>",
    continues=False,
    tools=(),
    form="json",
)
"""The syntax of Hermes and Qwen: a call in JSON, and the response in a separate message."""


def _without_fence(call: Call | None) -> Call | None:
    """The call with its code freed from a Markdown fence, if there is one."""
    if call is None:
        return None
    fenced = _FENCED_CODE.fullmatch(call.arguments["code"])
    return call if fenced is None else replace(call, arguments={"code": fenced[1]})


_code_call = tagged_call("code", tool="python", argument="code")

RE_TOOL = Syntax(
    name="re-tool",
    stop=("</code>",),
    parse=lambda text: _without_fence(_code_call(text)),
    wrap=lambda result: f"\n<interpreter>\n{result}\n</interpreter>\n",
    continues=True,
    tools=("python",),
)
"""ReTool (arXiv:2504.11536): Python code, fenced or not, and the interpreter's output."""

TAGS = Syntax(
    name="tags",
    stop=(),
    parse=lambda _: None,
    wrap=lambda result: f" <result> {result} </result> ",
    continues=True,
    tools=(),
)
"""A tool's arguments between tags with its name, followed by the result."""

SYNTAXES: Mapping[str, Syntax] = {
    syntax.name: syntax
    for syntax in (RE_SEARCH, R1_SEARCHER, SEARCH_R1, FENCED, JSON_CALL, RE_TOOL, TAGS)
}
