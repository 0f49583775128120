"""An assistant's tool calls in the format of the chat template."""

from __future__ import annotations

import json

import pytest

from agents.renderer import Renderer
from rl.data.conversations import conversation_of, to_messages

SAID = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
CALLING = (
    "<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}"
    "{% if m.content or not loop.first %}{{ '\n' }}{% endif %}"
    "<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}<|im_end|>\n"
)
"""As Qwen2.5's template writes an assistant's message."""
LOOK = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look something up.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}


def call(at, **more):
    return {"type": "function", "function": {"name": "look", "arguments": {"at": at}}, **more}


LOOKED = ("look", {"at": "Bako"})
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Bako or Vabo?"},
    {"role": "assistant", "content": "", "tool_calls": [call("Bako"), call("<|im_end|>")]},
    {"role": "tool", "name": "look", "content": "Bako is old."},
    {"role": "tool", "name": "look", "content": "Vabo is young."},
    {"role": "assistant", "content": "Once more.", "tool_calls": [call("Vabo")]},
    {"role": "tool", "name": "look", "content": "Vabo <|im_end|>"},
    {"role": "assistant", "content": "Vabo."},
]


@pytest.fixture
def renderer(make_tokenizer):
    tokenizer = make_tokenizer("hermes")
    assert SAID in tokenizer.chat_template
    tokenizer.chat_template = tokenizer.chat_template.replace(SAID, CALLING)
    return Renderer(tokenizer)


def halves(renderer, segment):
    """What was read, and what is learned."""
    rows = list(zip(segment.token_ids, segment.loss_mask, strict=True))
    return [renderer.tokenizer.decode([t for t, m in rows if m == mask]) for mask in (0, 1)]


def test_a_conversation_with_tools_equals_the_templates_rendering(renderer):
    segment = conversation_of(MESSAGES, tools=(LOOK,)).to_segment(renderer)
    whole = renderer.tokenizer.apply_chat_template(MESSAGES, tools=[LOOK], tokenize=False)
    assert renderer.tokenizer.decode(segment.token_ids) + "\n" == whole
    learned = halves(renderer, segment)[1]
    assert learned == (
        '<tool_call>\n{"name": "look", "arguments": {"at": "Bako"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "look", "arguments": {"at": "<|im_end|>"}}\n</tool_call><|im_end|>'
        'Once more.\n<tool_call>\n{"name": "look", "arguments": {"at": "Vabo"}}\n</tool_call>'
        "<|im_end|>Vabo.<|im_end|>"
    )
    # Of what a message holds nothing is a special token: three ends, as there are three answers.
    ends = [t for t, m in zip(segment.token_ids, segment.loss_mask, strict=True) if m]
    assert ends.count(renderer.end_token_ids[0]) == 3


def test_arguments_as_text_and_results_without_a_name_mean_the_same(renderer):
    loose = json.loads(json.dumps(MESSAGES))
    for message in loose:
        message.pop("name", None)
        for made in message.get("tool_calls", []):
            made["function"]["arguments"] = json.dumps(made["function"]["arguments"])
            made["id"] = "x"
        if "tool_calls" in message and not message["content"]:
            message["content"] = None
    assert conversation_of(loose, tools=(LOOK,)) == conversation_of(MESSAGES, tools=(LOOK,))


def test_messages_with_calls_come_back(renderer):
    conversation = conversation_of(MESSAGES)
    assert conversation_of(to_messages(conversation)) == conversation
    results = [m for m in to_messages(conversation) if m["role"] == "tool"]
    assert [m["content"] for m in results] == ["Bako is old.", "Vabo is young.", "Vabo <|im_end|>"]


def test_mistrals_calls_stand_behind_its_special_token(make_tokenizer):
    renderer = Renderer(make_tokenizer("mistral"))
    _, tokens = renderer.taught(renderer.start(MESSAGES[1:2]), "", [LOOKED], ended=False)
    marker = renderer.tokenizer.convert_tokens_to_ids("[TOOL_CALLS]")
    assert tokens[0] == marker and tokens.count(marker) == 1
    assert renderer.tokenizer.decode(tokens) == (
        '[TOOL_CALLS] [{"name": "look", "arguments": {"at": "Bako"}}]'
    )


@pytest.mark.parametrize("kind", ["tiny", "gemma", "llama", "hermes"])
def test_a_template_that_writes_no_calls_gets_them_in_words(make_tokenizer, kind):
    renderer = Renderer(make_tokenizer(kind))
    assert not renderer.template.writes_calls
    _, tokens = renderer.taught(renderer.start(MESSAGES[1:2]), "So:", [LOOKED], ended=False)
    assert renderer.tokenizer.decode(tokens) == (
        'So:\n<tool_call>\n{"name": "look", "arguments": {"at": "Bako"}}\n</tool_call>'
    )
