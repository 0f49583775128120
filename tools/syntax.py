"""How a tool call stands in a model's text, and how its result is put back.

A syntax is a row of :data:`SYNTAXES`. Its stop strings halt the generation at a call; a result
either continues the model's own message, in place, or is a message of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Call:
    """A call found in a text."""

    tool: str
    arguments: Mapping[str, Any]
    end: int
    """Where the call ends in the text; what follows was not written for anyone to read."""


@dataclass(frozen=True, slots=True)
class Syntax:
    """One way of writing calls and results."""

    name: str
    stop: tuple[str, ...]
    """Stop strings: generation halts where a call is complete."""
    parse: Callable[[str], Call | None]
    """The first complete call in a text, or None."""
    wrap: Callable[[str], str]
    """A result's text as it is put back."""
    continues: bool
    """True: the result continues the model's message; False: it is a message of its own."""


def tagged_call(tag: str, *, tool: str, argument: str) -> Callable[[str], Call | None]:
    """A parser of ``<tag>text</tag>``: a call of one tool with one argument, the text, stripped.

    A closing tag that no opening one precedes is a call whose argument is empty.
    """
    opening, closing = f"<{tag}>", f"</{tag}>"

    def parse(text: str) -> Call | None:
        at = text.find(closing)
        if at < 0:
            return None
        _, found, inside = text[:at].rpartition(opening)
        return Call(tool, {argument: inside.strip() if found else ""}, at + len(closing))

    return parse


RE_SEARCH = Syntax(
    name="re-search",
    stop=("</search>",),
    parse=tagged_call("search", tool="search", argument="query"),
    wrap=lambda result: f" <result>\n{result}\n</result>",
    continues=True,
)
"""ReSearch (arXiv:2503.19470): the result follows the query inside the same message."""

SYNTAXES: Mapping[str, Syntax] = {syntax.name: syntax for syntax in (RE_SEARCH,)}
