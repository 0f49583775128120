"""How calls stand in text."""

from __future__ import annotations

import pytest

from tools.syntax import (
    FENCED,
    JSON_CALL,
    R1_SEARCHER,
    RE_SEARCH,
    RE_TOOL,
    SEARCH_R1,
    SYNTAXES,
    tagged_call,
)


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


def test_results_are_put_back_as_their_papers_do():
    documents = R1_SEARCHER.wrap("(1)one\n(2)two")
    assert documents == "\n\n<|begin_of_documents|>\n(1)one\n(2)two\n<|end_of_documents|>\n\n"
    assert SEARCH_R1.wrap("one") == "\n\n<information>one</information>\n\n"
    assert FENCED.wrap("one") == "<interpreter>\none\n</interpreter>\n\n"
    assert JSON_CALL.wrap("one") == "<tool_response>\none\n</tool_response>"
    assert [s.name for s in SYNTAXES.values() if not s.continues] == ["json"]


def test_r1_searchers_tags_hold_a_query():
    text = "I look. <|begin_of_query|> a b <|end_of_query|> more"
    call = R1_SEARCHER.parse(text)
    assert call is not None and call.arguments == {"query": "a b"}
    assert text[: call.end].endswith("<|end_of_query|>")


@pytest.mark.parametrize(
    ("text", "tool", "arguments"),
    [
        ("```search\na b\n```\n", "search", {"query": "a b"}),
        ("I look.\n``` python \nx = 1\nprint(x)\n```", "python", {"code": "x = 1\nprint(x)"}),
        ("```search\none\n```\n```search\ntwo\n```\n", "search", {"query": "one"}),
        ("```search\n```\n", "search", {"query": ""}),
    ],
)
def test_a_fenced_block_is_a_call(text, tool, arguments):
    call = FENCED.parse(text)
    assert call is not None
    assert (call.tool, call.arguments, call.error) == (tool, arguments, None)
    assert text[: call.end].rstrip().endswith("```")


@pytest.mark.parametrize("text", ["```\n", "say\n```\nx\n```\n", "```sql\nselect 1\n```\n"])
def test_a_block_of_no_tool_is_a_reported_mistake(text):
    call = FENCED.parse(text)
    assert call is not None and call.error is not None
    assert "a tool's name (search, python)" in call.error


def test_an_open_block_is_no_call_yet():
    assert FENCED.parse("```search\na b") is None
    assert FENCED.parse("in ```search``` words") is None
    # Generation halts behind a block, not in front of the next one.
    assert not "x\n```search\nq\n```search".endswith(FENCED.stop)
    assert "\n```search\n".find(FENCED.stop[0]) < 0


def test_a_json_call():
    text = (
        'So <tool_call>\n{"name": "search", "arguments": {"query": "a", "k": 2}}\n</tool_call> no'
    )
    call = JSON_CALL.parse(text)
    assert call is not None
    assert (call.tool, call.arguments) == ("search", {"query": "a", "k": 2})
    assert text[call.end :] == " no"
    assert JSON_CALL.parse('<tool_call>{"name": "search"') is None


@pytest.mark.parametrize(
    "inside", ["", "search a", '{"name": "search"}', '["search"]', '{"name": 1, "arguments": {}}']
)
def test_a_malformed_json_call_is_a_reported_mistake(inside):
    call = JSON_CALL.parse(f"<tool_call>{inside}</tool_call>")
    assert call is not None and call.error is not None and "must be JSON" in call.error
    assert JSON_CALL.parse("</tool_call>") is not None


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("<code>\nprint(1)\n</code>", "print(1)"),
        ("so <code>\n```python\nx = 1\n\nx\n```\n</code>", "x = 1\n\nx"),
        ("<code>```py\n1```</code>", "1"),
        ("<code>```python3\n1\n```</code>", "1"),
        ("<code>```\n1\n```</code> and more", "1"),
        ("<code>a = '```'</code>", "a = '```'"),
        ("</code>", ""),
    ],
)
def test_code_is_called_with_or_without_a_fence(text, code):
    call = RE_TOOL.parse(text)
    assert call is not None
    assert (call.tool, call.arguments) == ("python", {"code": code})
    assert text[: call.end].endswith("</code>")
    assert RE_TOOL.parse("```python\n1\n```") is None
    assert RE_TOOL.wrap("1") == "\n<interpreter>\n1\n</interpreter>\n"
