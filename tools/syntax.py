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
    start: int = 0
    """Index in the text at which the call starts. Only the syntax "chat" sets it."""


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


CLOSES_CALL = "</tool_call>"
_CALL_TAG = re.compile(r"</?tool_call>")
_NO_JSON_CALL = 'a call must be JSON: <tool_call>{"name": "...", "arguments": {...}}</tool_call>'
_IN_THOUGHT = "no call is made in a thought: close the thought with </think>, then write the call"
_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"\s*")
_CLOSINGS = {
    "<think>": "</think>",
    "[THINK]": "[/THINK]",
    "<|channel>thought": "<channel|>",
    "<|channel|>analysis<|message|>": "<|end|>",
    "<|channel|>final<|message|>": "",
    "<|start|>assistant<|channel|>final<|message|>": "",
}
"""What ends a thought, by what opens it. The name of gpt-oss's last channel is an empty thought."""
_OPENINGS = "|".join(map(re.escape, _CLOSINGS))
_ENDINGS = "|".join(re.escape(text) for text in _CLOSINGS.values() if text)
_OUTER_TAGS = re.compile(rf"\A(?:{_OPENINGS})|(?:{_ENDINGS})\Z")
_MARK = re.compile(
    rf"(?P<opens>{_OPENINGS})|(?P<closes></think>|\[/THINK\])"
    # Quoted tags are no tags: in a fence, in code, in a call's arguments.
    r"|(?s:```.*?```)|`(?:</?think>|\[/?THINK\])[^`\n]*`"
    r"|(?s:<function=(?:(?!<function=).)*?</function>)"
    r'|(?P<json>\[ARGS\]\s*+\{|\{(?=\s*+"(?:name|type|arguments|parameters)"))'
)
MOST_MALFORMED = 100
"""Number of malformed calls after which a search for thoughts or calls ends: each may take as
long as the text, and a text that repeats itself has thousands."""
_FENCE = re.compile(r"^```[ \t]*(\w*)[ \t]*$\n?", re.MULTILINE)
_FENCED_CODE = re.compile(r"```[ \t]*(?i:python3?|py3?)?[ \t]*\n(.*?)\n?```", re.DOTALL)
_CLOSING_FENCE = re.compile(r"^```[ \t]*$\n?", re.MULTILINE)


def json_at(text: str, at: int) -> tuple[Any, int]:
    """The JSON value that starts at index ``at``, after white space, and the index of its end.

    If there is no valid value: None, and the text's length.
    """
    try:
        return _DECODER.raw_decode(text, _after_space(text, at))
    except (ValueError, RecursionError):
        return None, len(text)


def closed_at(text: str, at: int, closing: str) -> int:
    """Index of the end of ``closing``, if only white space precedes it after ``at``; else -1."""
    at = _after_space(text, at)
    return at + len(closing) if text.startswith(closing, at) else -1


def split_reasoning(text: str, opening: str = "") -> tuple[str, str]:
    """Split a model's text into its reasoning and the rest, without the tags of the reasoning.

    A thought runs from ``<think>`` to ``</think>``, from ``[THINK]`` to ``[/THINK]`` (Mistral),
    from ``<|channel>thought`` to ``<channel|>`` (Gemma 4), or is gpt-oss's channel ``analysis``. It
    may stand anywhere in the text. If the first tag is a closing one, the prompt has opened the
    thought. A thought without an end holds the rest of the text. Tags in well-formed calls and in
    code are not tags of thoughts. A text without reasoning stays unchanged.

    Args:
        text: the model's text.
        opening: text of the same message before ``text``; it may open the thought.
    """
    whole, start = opening + text, len(opening)
    thoughts = _thoughts(whole)
    if not thoughts:
        return "", text
    inside = [
        _OUTER_TAGS.sub("", whole[first:end]).strip() for first, end in thoughts if end > start
    ]
    kept, at = "", start
    for first, end in thoughts:
        kept += whole[at:first]
        at = max(at, end)
    return "\n".join(filter(None, inside)), (kept + whole[at:]).lstrip()


def blank_reasoning(text: str, opening: str = "") -> str:
    """The text with blanks in place of its reasoning: all indices stay. See split_reasoning."""
    for start, end in _thoughts(opening + text):
        first, last = max(0, start - len(opening)), max(0, end - len(opening))
        text = text[:first] + " " * (last - first) + text[last:]
    return text


def _thoughts(text: str) -> list[tuple[int, int]]:
    """Start and end of each thought, with its tags."""
    last = max(text.rfind(mark) for mark in ("think>", "THINK]", "<|channel"))
    thoughts, at, malformed = list[tuple[int, int]](), 0, 0
    while at <= last and (mark := _MARK.search(text, at)) is not None:
        at = mark.end()
        if mark["opens"]:
            closing = _CLOSINGS[mark[0]]
            found = text.find(closing, at)
            at = found + len(closing) if found >= 0 else len(text)
            thoughts.append((mark.start(), at))
        elif mark["closes"] and not thoughts:
            thoughts.append((0, at))
        elif mark["json"]:
            try:
                at = _DECODER.raw_decode(text, at - 1)[1]
            except (ValueError, RecursionError):
                malformed += 1
                if malformed == MOST_MALFORMED:
                    break
    return thoughts


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


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
        # JSON may hold the closing tag in a string.
        first = text.find(opening, 0, at)
        value, json_end = json_at(text, first + len(opening)) if first >= 0 else (None, 0)
        if value is not None and (end := closed_at(text, json_end, closing)) > 0:
            inside = text[first + len(opening) : json_end]
            return Call(tool, {argument: inside.strip()}, end)
        _, found, inside = text[:at].rpartition(opening)
        return Call(tool, {argument: inside.strip() if found else ""}, at + len(closing))

    return parse


def json_call(text: str) -> Call | None:
    """The first ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``, Hermes's format.

    Reasoning is not read. If the JSON is malformed, ``Call.error`` is set.
    """
    visible = blank_reasoning(text)
    found = _CALL_TAG.search(visible)
    if found is None:
        # Generation halts at the closing tag, in a thought as well.
        halted = text.endswith(CLOSES_CALL)
        return Call("", {}, len(text), error=_IN_THOUGHT) if halted else None
    called, json_end = json_at(visible, found.end())
    end = closed_at(visible, json_end, CLOSES_CALL)
    if end < 0 or found[0] == CLOSES_CALL:
        at = visible.find(CLOSES_CALL, found.start())
        return None if at < 0 else Call("", {}, at + len(CLOSES_CALL), error=_NO_JSON_CALL)
    name = called.get("name") if isinstance(called, dict) else None
    arguments = called.get("arguments") if isinstance(called, dict) else None
    if not isinstance(name, str) or not isinstance(arguments, dict):
        return Call("", {}, end, error=_NO_JSON_CALL)
    return Call(name, arguments, end)


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
