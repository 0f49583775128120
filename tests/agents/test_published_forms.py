"""Templates in the forms of gpt-oss, GLM-4.5, Gemma 4, Nemotron 3, Qwen3 and DeepSeek-V3."""

from __future__ import annotations

import pytest

from agents.renderer import Renderer
from benchmarks.models.templates import tokenizer_for, verdicts_of
from envs.episode import ToolResults

QUESTION = {"role": "user", "content": "6 x 7?"}
ROLES = "{% for m in messages %}"
TOOLS = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
CHANNELS = (
    "{% if tools %}<|start|>system<|message|>{{ tools | tojson }}<|end|>{% endif %}"
    f"{ROLES}{{% if m.role == 'tool' %}}"
    "{% if not said.calls %}{{ raise_exception('no call precedes the result') }}{% endif %}"
    "<|start|>functions.{{ m.name }}<|message|>{{ m.content }}<|end|>"
    "{% elif m.role != 'assistant' %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>"
    "{% else %}"
    "{% if m.thinking is defined and loop.last %}"
    "<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "{% for c in m.tool_calls or [] %}{% set said.calls = true %}"
    "<|start|>assistant to=functions.{{ c.function.name }}<|channel|>commentary json<|message|>"
    "{{ c.function.arguments | tojson }}<|call|>{% endfor %}"
    "{% if not m.tool_calls %}<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}{% endif %}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
CHANNELS = "{% set said = namespace(calls=false) %}" + CHANNELS
HEADERS = (
    "[gMASK]<sop>{% if tools %}<|system|>\n{{ tools | tojson }}{% endif %}"
    f"{ROLES}{{% if m.role == 'assistant' %}}<|assistant|>\n<think></think>\n{{{{ m.content }}}}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}\n"
    "{% for k, v in c.function.arguments.items() %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>{{ v }}</arg_value>\n{% endfor %}</tool_call>{% endfor %}"
    "{% else %}{{ {'tool': '<|observation|>', 'user': '<|user|>'}[m.role] }}\n{{ m.content }}"
    "{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
# As GLM-4.5's, for training: an answer has the role behind it, which then is not written again.
ROLE_AHEAD = HEADERS.replace(
    "<|assistant|>\n<think></think>\n{{ m.content }}",
    "<|assistant|>\n<think></think>\n{{ m.content }}{{ '' if m.tool_calls else '<|user|>' }}",
).replace(
    "{{ {'tool': '<|observation|>', 'user': '<|user|>'}[m.role] }}",
    "{{ '<|observation|>' if m.role == 'tool' and messages[loop.index0 - 1].tool_calls"
    " else '<|user|>' if loop.first }}",
)
CALLS_FIRST = (
    "<bos>{% if tools %}<|turn>system\n{{ tools | tojson }}<turn|>\n{% endif %}"
    f"{ROLES}{{% if m.role == 'tool' %}}{{% else %}}"
    "<|turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<|tool_call>call:{{ c.function.name }}{{ '{' }}"
    '{% for k, v in c.function.arguments.items() %}{{ k }}:<|"|>{{ v }}<|"|>{% endfor %}'
    "}<tool_call|>{% endfor %}"
    "{% if m.tool_calls %}<|tool_response>{% set turn = namespace(at=loop.index) %}"
    "{% for r in messages[turn.at:] if r.role == 'tool' %}"
    "{{ '<|tool_response>' if not loop.first else '' }}response:{{ r.name }}{value:{{ r.content }}}"
    "<tool_response|>{% endfor %}{% else %}<turn|>\n{% endif %}{% endif %}{% endfor %}"
    "{% if add_generation_prompt and messages[-1].role != 'tool' %}<|turn>model\n{% endif %}"
)
CHATML = (
    f"{TOOLS}{ROLES}{{% if m.role == 'assistant' %}}"
    "<|im_start|>assistant\nBEFORE{{ m.content }}"
    "{% for c in m.tool_calls or [] %}CALL{% endfor %}<|im_end|>\n"
    "{% elif m.role == 'tool' %}<|im_start|>user\n<tool_response>{{ m.content }}</tool_response>"
    "<|im_end|>\n"
    "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\nPROMPT{% endif %}"
)
JSON_CALL = "<tool_call>{{ c.function | tojson }}</tool_call>"
OPENS = CHATML.replace("PROMPT", "<think>\n").replace("CALL", JSON_CALL)
OPENS = OPENS.replace(
    "BEFORE",
    "<think>{% if m.reasoning_content %}\n{{ m.reasoning_content }}\n{% endif %}</think>",
)
EMPTY = CHATML.replace("PROMPT", "").replace("CALL", JSON_CALL)
EMPTY = EMPTY.replace(
    "BEFORE",
    "{% if loop.last %}<think>\n{{ m.reasoning_content or '' }}\n</think>\n\n{% endif %}",
)
TEXT_ARGUMENTS = (
    CHATML.replace("PROMPT", "")
    .replace("BEFORE", "")
    .replace("CALL", "<tool_call>{{ c.function.name + ' ' + c.function.arguments }}</tool_call>")
)
FORMS = {
    "channels": CHANNELS,
    "headers": HEADERS,
    "headers ahead": ROLE_AHEAD,
    "calls first": CALLS_FIRST,
    "opens a thought": OPENS,
    "an empty thought": EMPTY,
    "text arguments": TEXT_ARGUMENTS,
}


@pytest.mark.parametrize("name", FORMS)
def test_the_renderer_writes_what_the_template_does(name):
    verdicts = dict(verdicts_of(FORMS[name]))
    assert set(verdicts) == {"turns", "answer", "thought", "calls"}
    assert {key: v for key, v in verdicts.items() if not v.startswith("equal")} == {}


def rendered(name):
    return Renderer(tokenizer_for(FORMS[name]))


def test_a_channel_that_ends_is_no_answer_that_ends():
    """gpt-oss closes its analysis with the token that closes each message of the past."""
    renderer = rendered("channels")
    ids = renderer.tokenizer.convert_tokens_to_ids
    assert set(renderer.end_token_ids) == {ids("<|return|>"), ids("<|call|>")}
    text = renderer.tokenizer.decode(renderer.extend("Sure?", last=ids("<|return|>")))
    assert text == "<|start|>user<|message|>Sure?<|end|><|start|>assistant"


def test_a_message_that_no_token_ends_leaves_the_next_ones_role():
    """GLM-4.5 ends an answer with the role of the next message."""
    renderer = rendered("headers")
    user, eos = renderer.tokenizer.convert_tokens_to_ids(["<|user|>", renderer.tokenizer.eos_token])
    assert renderer.end_token_ids[0] == user
    decode = renderer.tokenizer.decode
    assert decode(renderer.extend("Sure?", last=user)) == "\nSure?<|assistant|>"
    assert decode(renderer.extend("Sure?", last=eos)) == "<|user|>\nSure?<|assistant|>"
    results = ToolResults("1", [("look", "1")])
    assert decode(renderer.observe(results, last=eos)) == "<|observation|>\n1<|assistant|>"


def test_a_result_stands_behind_its_call():
    """Gemma 4's model stops at the token that opens the result, which continues its turn."""
    renderer = rendered("calls first")
    opens = renderer.tokenizer.convert_tokens_to_ids("<|tool_response>")
    assert renderer.takes_tools and opens in renderer.end_token_ids
    read = renderer.observe(ToolResults("1", [("look", "1"), ("look", "2")]), last=opens)
    assert renderer.tokenizer.decode(read) == (
        "response:look{value:1}<tool_response|><|tool_response>response:look{value:2}<tool_response|>"
    )


def test_a_third_way_is_refused_in_one_line():
    source = EMPTY.replace(
        "<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\nOh, {% endif %}"
    )
    assert source != EMPTY
    renderer = Renderer(tokenizer_for(source))
    with pytest.raises(ValueError, match=r"^the chat template writes .* behind 'Oh, ', and .*\)$"):
        renderer.taught(renderer.start([QUESTION]), "42")
