"""Calls in the formats of published chat models, parallel ones among them."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import envs
from tools.chat_calls import chat_calls, first_chat_call, typed_call
from tools.syntax import JSON_CALL

SCHEMAS = {
    "search": {"properties": {"query": {"type": "string"}}},
    "add": {"properties": {"x": {"type": "integer"}, "y": {"type": "array"}}},
}
A, B = ("search", {"query": "a"}), ("add", {"x": 1, "y": [2]})


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("no call", []),
        ("", []),
        ('{"answer": 3}', []),
        ('<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call>', [A]),
        (r'<tool_call>{"name": "search", "arguments": "{\"query\": \"a\"}"}</tool_call>', [A]),
        (
            'Both.<tool_call>{"name": "search", "arguments": {"query": "a"}}</tool_call>\n'
            '<tool_call>{"name": "add", "arguments": {"x": 1, "y": [2]}}</tool_call>',
            [A, B],
        ),
        (
            "<tool_call>\n<function=search>\n<parameter=query>\na\n</parameter>\n</function>\n"
            "</tool_call>\n<tool_call>\n<function=add>\n<parameter=x>\n1\n</parameter>\n"
            "<parameter=y>\n[2]\n</parameter>\n</function>\n</tool_call>",
            [A, B],
        ),
        (
            '[TOOL_CALLS] [{"name": "search", "arguments": {"query": "a"}, "id": "abcdefghi"}, '
            '{"name": "add", "arguments": {"x": 1, "y": [2]}}]',
            [A, B],
        ),
        (
            '[TOOL_CALLS]search[ARGS]{"query": "a"}[TOOL_CALLS]add[ARGS]{"x": 1, "y": [2]}',
            [A, B],
        ),
        (
            '[TOOL_CALLS]search[CALL_ID]abcdefghi[ARGS]{"query": "a"}'
            '[TOOL_CALLS]add[CALL_ID]abcdefghj[ARGS]{"x": 1, "y": [2]}',
            [A, B],
        ),
        ('{"name": "search", "parameters": {"query": "a"}}', [A]),
        (
            '{"name": "search", "parameters": {"query": "a"}}\n;\n'
            '{"name": "add", "parameters": {"x": 1, "y": [2]}}\n',
            [A, B],
        ),
        ('<|python_tag|>{"name": "search", "parameters": {"query": "a"}}', [A]),
        (
            '{"name": "search", "parameters": {"query": "a"}}; '
            '{"name": "add", "parameters": {"x": 1, "y": [2]}}',
            [A, B],
        ),
        (
            "Both.<tool_call>search\n<arg_key>query</arg_key>\n<arg_value>a</arg_value>\n</tool_call>"
            "<tool_call>add\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n<arg_key>y</arg_key>\n"
            "<arg_value>[2]</arg_value>\n</tool_call>",
            [A, B],
        ),
        (
            '<|tool_call>call:search{query:<|"|>a<|"|>}<tool_call|>'
            "<|tool_call>call:add{x:1,y:[2]}<tool_call|>",
            [A, B],
        ),
        (
            "<|channel|>analysis<|message|>First to=functions.add<|message|>{}.<|end|>"
            "<|start|>assistant<|channel|>commentary to=functions.search <|constrain|>json"
            '<|message|>{"query": "a"}',
            [A],
        ),
        (' to=functions.search<|channel|>commentary json<|message|>{"query": "a"}', [A]),
        ("Send it to=functions.search, please.", []),
    ],
)
def test_calls_of_every_format(text, calls):
    found = [typed_call(call, SCHEMAS[call.tool]) for call in chat_calls(text)]
    assert [(call.tool, call.arguments) for call in found] == calls
    assert all(call.error is None for call in found)
    first = first_chat_call(text)
    assert (first is None) == (not calls)
    assert first is None or typed_call(first, SCHEMAS[first.tool]) == found[0]


MARKS = [
    "</tool_call>",
    "<tool_call>",
    "[/TOOL_CALLS]",
    "[TOOL_CALLS]",
    "[ARGS]",
    "<|python_tag|>",
    "</function>",
    "</parameter>",
    "</parameter>\n</function>",
    "</function>\n</tool_call>",
    "</parameter></function></tool_call>",
    "}; {",
    '"}}</tool_call>',
    "```",
    "</think>",
]
JSON_FORMS = [
    "<tool_call>{call}</tool_call>",
    "Both: <tool_call>\n{call}\n</tool_call> <tool_call>{call}</tool_call>",
    "[TOOL_CALLS] [{call}, {call}]",
    "[TOOL_CALLS][{call}][/TOOL_CALLS]",
    "[TOOL_CALLS]search[ARGS]{arguments}[TOOL_CALLS]search[CALL_ID]abc[ARGS]{arguments}",
    "{call}",
    "{call}; {call}",
    "<|python_tag|>{call}",
    "Then <tool_call>{as_text}</tool_call>",
]
XML = (
    "<tool_call>\n<function=search>\n<parameter=query>\n{}\n</parameter>\n</function>\n</tool_call>"
)


@pytest.mark.parametrize("mark", MARKS)
def test_a_mark_in_an_argument_ends_no_call(mark):
    arguments = {"query": f"what does {mark} mean"}
    call = json.dumps({"name": "search", "arguments": arguments})
    as_text = json.dumps({"name": "search", "arguments": json.dumps(arguments)})
    for form in JSON_FORMS:
        text = form
        for name, value in (("call", call), ("arguments", json.dumps(arguments))):
            text = text.replace(f"{{{name}}}", value)
        found = chat_calls(text.replace("{as_text}", as_text))
        assert len(found) == max(1, form.count("{call}"), form.count("{arguments}"))
        assert {(c.tool, c.arguments["query"], c.error) for c in found} == {
            ("search", arguments["query"], None)
        }
    if mark != "<tool_call>":  # XML cannot hold it: a call begins there.
        found = chat_calls(XML.format(arguments["query"]) + "\n" + XML.format("b"))
        assert [c.arguments for c in found] == [arguments, {"query": "b"}]
    json_call = JSON_CALL.parse(f"hm <tool_call>\n{call}\n</tool_call> unseen")
    assert (json_call.tool, json_call.arguments, json_call.error) == ("search", arguments, None)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        # Prose that names a mark, and the mark of a format in another format's call.
        ("No [TOOL_CALLS] here: <tool_call>{call}</tool_call>", ["search"]),
        ("I call: <tool_call> <tool_call>{call}</tool_call>", ["", "search"]),
        ("<tool_call>{call} and more</tool_call><tool_call>{call}</tool_call>", ["", "search"]),
        # Qwen3-Coder may leave out the last closing tag of a parameter.
        ("<tool_call><function=search><parameter=query>a</function></tool_call>", ["search"]),
        ("<tool_call><function=search></function></tool_call>" * 2, ["search", "search"]),
        ("<tool_call><function=search><parameter=query>a</parameter>", [""]),
    ],
)
def test_calls_between_other_marks(text, calls):
    call = json.dumps({"name": "search", "arguments": {"query": "a"}})
    found = chat_calls(text.replace("{call}", call))
    assert [each.tool for each in found] == calls
    assert [bool(each.error) for each in found] == [not name for name in calls]
    assert all(each.start < each.end for each in found)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>{</tool_call>",
        '<tool_call>{"name": "search", "arguments": {"query": "a"}}',
        '<tool_call>["search"]</tool_call>',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>',
        "[TOOL_CALLS] nothing",
        "[TOOL_CALLS] []",
        '[TOOL_CALLS]search[ARGS]{"query"',
        '{"name": "search", "parameters": 3}',
        "<|python_tag|>print(3)",
    ],
)
def test_a_malformed_call_is_reported_and_not_dropped(text):
    (call,) = chat_calls(text)
    assert call.error is not None
    assert call.tool == ""


@settings(max_examples=200, deadline=None, database=None)
@given(
    st.lists(
        st.text(max_size=4)
        | st.sampled_from(
            [
                "<tool_call>",
                "</tool_call>",
                "[TOOL_CALLS]",
                "[ARGS]",
                "<|python_tag|>",
                "[",
                "{",
                '"name":',
                '"parameters":',
                "}",
                "]",
                ";",
                "<function=f>",
                "</function>",
                "</tool_call>",
                "<parameter=x>",
                "</parameter>",
                "<think>",
                "</think>",
                "[THINK]",
                "```",
            ]
        ),
        max_size=8,
    ).map("".join)
)
def test_no_text_raises_and_calls_end_in_order_inside_it(text):
    ends = [call.end for call in chat_calls(text)]
    assert ends == sorted(ends)
    assert all(0 < end <= len(text) for end in ends)


@pytest.mark.parametrize(
    ("schema", "read"),
    [
        ({"type": "string"}, "1984"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "1984"),
        ({"type": "integer"}, 1984),
        ({"anyOf": [{"type": "number"}, {"type": "null"}]}, 1984),
        ({}, 1984),
    ],
)
def test_a_parameter_between_tags_has_the_type_that_the_tool_says(schema, read):
    text = "<tool_call><function=f><parameter=x>1984</parameter></function></tool_call>"
    [call] = chat_calls(text)
    assert typed_call(call, {"properties": {"x": schema}}).arguments == {"x": read}
    [wrong] = chat_calls(text.replace("1984", "no JSON"))
    assert typed_call(wrong, {"properties": {"x": schema}}).arguments == {"x": "no JSON"}


def test_a_query_that_is_a_number_is_searched():
    env = envs.make("search-qa", syntax="chat")
    env.reset(seed=0)
    call = "<tool_call><function=search><parameter=query>1984</parameter></function></tool_call>"
    [record] = env.step(call).info["tool_calls"]
    assert (record.arguments, record.error) == ({"query": "1984"}, None)
    env.close()
