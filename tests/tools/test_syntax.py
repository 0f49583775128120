"""How calls stand in text."""

from __future__ import annotations

import pytest

from tools.syntax import RE_SEARCH, SYNTAXES, tagged_call


@pytest.mark.parametrize(
    ("text", "query", "seen"),
    [
        ("<search> a b </search>", "a b", "<search> a b </search>"),
        (
            "<think> x </think> <search>q</search> more",
            "q",
            "<think> x </think> <search>q</search>",
        ),
        ("<search>one</search><search>two</search>", "one", "<search>one</search>"),
        ("<search> first <search> second </search>", "second", None),
        ("no opening </search>", "", None),
        ("<search></search>", "", None),
        ("<search>\nover\nlines\n</search>", "over\nlines", None),
    ],
)
def test_the_first_complete_call_is_found(text, query, seen):
    call = RE_SEARCH.parse(text)
    assert call is not None
    assert call.tool == "search"
    assert call.arguments == {"query": query}
    assert text[: call.end] == (seen or text)


@pytest.mark.parametrize("text", ["", "plain", "<search> not yet", "<search> q </ search>"])
def test_no_call_in_other_text(text):
    assert RE_SEARCH.parse(text) is None


def test_a_result_is_put_back_as_research_does():
    assert RE_SEARCH.wrap("one\ntwo") == " <result>\none\ntwo\n</result>"
    assert RE_SEARCH.continues
    assert RE_SEARCH.stop == ("</search>",)


def test_every_syntax_halts_where_its_call_is_complete():
    for name, syntax in SYNTAXES.items():
        assert syntax.name == name
        assert all(syntax.parse(f"x{stop}") is not None for stop in syntax.stop)


def test_a_row_is_one_line():
    parse = tagged_call("python", tool="python", argument="code")
    call = parse("<python>print(1)</python>")
    assert call is not None and call.arguments == {"code": "print(1)"}
