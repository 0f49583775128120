"""Conversations: their tokens, their messages, and files of them."""

from __future__ import annotations

import json

import pytest

from agents.renderer import Renderer
from rl.data.conversations import (
    Conversation,
    Exchange,
    conversation_of,
    read_conversations,
    to_messages,
)
from rl.runtime.tiny import train_tokenizer


@pytest.fixture(scope="module")
def renderer():
    return Renderer(train_tokenizer([Conversation((Exchange("a b", "c d"),))], 270))


def masked(renderer, segment):
    """The texts of the runs of trained tokens, end tokens shown."""
    texts, run = [], []
    for token, mask in zip([*segment.token_ids, 0], [*segment.loss_mask, 0], strict=True):
        if mask:
            run.append(token)
        elif run:
            texts.append(renderer.tokenizer.decode(run))
            run = []
    return texts


def test_tokens_as_sampled_stay_as_sampled_where_the_tokenizer_is_the_same(renderer):
    first = tuple(renderer.start([{"role": "user", "content": "1?"}]))
    letters = [*renderer.splice("c "), *renderer.splice("d")]
    assert letters != renderer.splice("c d")
    exchange = Exchange("1?", "c d", ended=False, token_ids=(first, tuple(letters)))
    own = Conversation((exchange,), tokenizer=renderer.identity).to_segment(renderer)
    own.check()
    assert own.token_ids == [*first, *letters]
    assert own.loss_mask == [0] * len(first) + [1] * len(letters)
    for tokenizer in ("", "another"):
        other = Conversation((exchange,), tokenizer=tokenizer).to_segment(renderer)
        assert other.token_ids == [*first, *renderer.splice("c d")]


def test_messages_say_all_that_a_conversation_holds():
    conversation = Conversation(
        (
            Exchange("Who?", "look</s>", ended=False, token_ids=((1, 2), (3,))),
            Exchange(" found ", "me", continues=True, token_ids=((), (4, 5))),
        ),
        system="Look.",
        tokenizer="t",
    )
    messages = json.loads(json.dumps(to_messages(conversation)))
    assert messages == [
        {"role": "system", "content": "Look."},
        {"role": "user", "content": "Who?", "token_ids": [1, 2]},
        {"role": "assistant", "content": "look</s>", "ended": False, "token_ids": [3]},
        {"role": "user", "content": " found ", "continues": True, "token_ids": []},
        {"role": "assistant", "content": "me", "token_ids": [4, 5]},
    ]
    assert conversation_of(messages, "t") == conversation


def test_an_authors_words_and_end_tokens_are_trained_and_nothing_else(renderer):
    conversation = Conversation((Exchange("1?", "one"), Exchange("2?", "two")), system="Count.")
    segment = conversation.to_segment(renderer)
    segment.check()
    whole = [
        {"role": "system", "content": "Count."},
        {"role": "user", "content": "1?"},
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": "2?"},
        {"role": "assistant", "content": "two"},
    ]
    *shown, _ = renderer.start(whole)  # All but the token by which the assistant is asked to speak.
    assert segment.token_ids == shown
    assert masked(renderer, segment) == ["one<|end|>", "two<|end|>"]
    assert [segment.turn_ids.count(turn) for turn in (0, 1)] == [
        len(renderer.start(whole[:2])) + len(renderer.splice("one")) + 1,
        len(renderer.extend("2?", last=renderer.end_token_ids[0]))
        + len(renderer.splice("two"))
        + 1,
    ]


def test_a_halted_action_has_no_end_token_and_goes_on_in_place(renderer):
    conversation = Conversation(
        (
            Exchange("Who?", "look</s>", ended=False),
            Exchange(" found ", "me", continues=True),
        )
    )
    segment = conversation.to_segment(renderer)
    assert masked(renderer, segment) == ["look</s>", "me<|end|>"]
    assert renderer.tokenizer.decode(segment.token_ids) == (
        "<|user|>Who?<|end|><|assistant|>look</s> found me<|end|>"
    )


def test_a_halted_action_before_a_message_is_ended_by_what_comes_next(renderer):
    conversation = Conversation(
        (Exchange("Who?", "look</s>", ended=False), Exchange("found", "me"))
    )
    segment = conversation.to_segment(renderer)
    assert masked(renderer, segment) == ["look</s>", "me<|end|>"]
    assert renderer.tokenizer.decode(segment.token_ids) == (
        "<|user|>Who?<|end|><|assistant|>look</s><|end|><|user|>found<|end|><|assistant|>me<|end|>"
    )


@pytest.fixture
def write(tmp_path):
    def write(*lines):
        path = tmp_path / "data.jsonl"
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return str(path)

    return write


def line(*messages):
    names = {"s": "system", "u": "user", "a": "assistant"}
    return json.dumps(
        {"messages": [{"role": names[role], "content": text} for role, text in messages]},
        ensure_ascii=False,
    )


GOOD = line(("u", "1?"), ("a", "one"))


def test_good_lines_read_as_conversations(write):
    separators = "x\u2028y\u0085z\x0b"
    path = write(GOOD, line(("s", "S"), ("u", "1"), ("a", "2"), ("u", "3"), ("a", separators)))
    assert read_conversations(path) == [
        Conversation((Exchange("1?", "one"),)),
        Conversation((Exchange("1", "2"), Exchange("3", separators)), system="S"),
    ]


@pytest.mark.parametrize(
    "bad",
    [
        "not json",
        "",
        "[]",
        "3",
        '{"message": []}',
        '{"messages": []}',
        '{"messages": [{"role": "user"}]}',
        '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": 3}]}',
        '{"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": null}]}',
        '{"messages": [{"role": "user", "content": "x", "token_ids": [1]}, '
        '{"role": "assistant", "content": "x"}]}',
        '{"messages": [{"role": "user", "content": "x", "token_ids": [1]}, '
        '{"role": "assistant", "content": "x", "token_ids": ["1"]}]}',
        line(("u", "x")),
        line(("a", "x"), ("u", "y")),
        line(("s", "x")),
        line(("u", "x"), ("a", "y"), ("s", "z"), ("a", "y")),
        line(("u", "x"), ("u", "y")),
    ],
)
def test_a_bad_line_is_named(write, bad):
    path = write(GOOD, GOOD, bad)
    with pytest.raises(ValueError, match=r"^.*data\.jsonl, line 3: expected \{\"messages\": ") as e:
        read_conversations(path)
    assert "\n" not in str(e.value)


def test_bytes_that_are_no_text_are_named_by_their_line(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_bytes(GOOD.encode() + b'\n{"messages": "\xff"}\n')
    with pytest.raises(ValueError, match=r"data\.jsonl, line 2: expected"):
        read_conversations(str(path))


def test_files_that_are_missing_or_empty_are_refused(tmp_path, write):
    with pytest.raises(ValueError, match=r'^data \(.*/no\) must be "demonstrations" or a file'):
        read_conversations(str(tmp_path / "no"))
    with pytest.raises(ValueError, match="holds no conversation"):
        read_conversations(write())


def test_an_unknown_role_is_named_with_the_valid_ones(write):
    with pytest.raises(ValueError, match=r"data\.jsonl, line 2: ") as refused:
        read_conversations(
            write(
                GOOD,
                '{"messages": [{"role": "user", "content": "x"}, '
                '{"role": "assistent", "content": "y"}]}',
            )
        )
    assert str(refused.value).endswith(
        "(message 2 has the role 'assistent'; the roles are system, user, assistant, tool. "
        "Did you mean 'assistant'?)"
    )
    with pytest.raises(ValueError, match="message 1 has no role, only from, value"):
        read_conversations(write('{"messages": [{"from": "human", "value": "x"}]}'))


SCHEMA = {"type": "function", "function": {"name": "look", "parameters": {}}}


@pytest.mark.parametrize("tools", [[SCHEMA], json.dumps([SCHEMA])])
def test_a_lines_tools_are_the_conversations(write, tools):
    row = json.loads(GOOD) | {"tools": tools}
    (read,) = read_conversations(write(json.dumps(row)))
    assert read.tools == (SCHEMA,)
    (without,) = read_conversations(write(json.dumps(row | {"tools": None})))
    assert without.tools == ()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tools": "look"}, "Expecting value"),
        (
            {"tools": ["look"]},
            "tools must be a list of JSON schemas of functions, not \\['look'\\]",
        ),
        ({"tools": {"look": {}}}, "tools must be a list of JSON schemas"),
    ],
)
def test_invalid_tool_schemas_are_refused(write, more, message):
    with pytest.raises(ValueError, match=rf"line 1: expected .*{message}"):
        read_conversations(write(json.dumps(json.loads(GOOD) | more)))


@pytest.mark.parametrize(
    "call", [{"function": {"arguments": {}}}, {"name": "look", "arguments": "[]"}, {"name": ""}]
)
def test_calls_without_name_or_arguments_are_refused(call):
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    with pytest.raises(ValueError, match="tool_calls hold"):
        conversation_of([{"role": "user", "content": "x"}, said])
