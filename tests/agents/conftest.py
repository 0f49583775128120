"""Tokenizers of several templates, each trained here in a moment."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import decoders, pre_tokenizers
from transformers import AddedToken, PreTrainedTokenizerBase

from rl.data.conversations import Conversation, Exchange
from rl.runtime.tiny import CHAT_TEMPLATE, train_tokenizer

CHATML = (
    "{% if messages[0].role != 'system' %}"
    "<|im_start|>system\nYou are helpful.<|im_end|>\n"
    "{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Qwen2.5's, tools left out: a default system message, a line feed after each message's end."""
FORGETFUL = CHATML.replace(
    "{{ m.content }}",
    "{% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}"
    "{% else %}{{ m.content }}{% endif %}",
)
"""An earlier turn's reasoning is dropped, as by Qwen3 and DeepSeek-R1."""
BRACKETS = "{% for m in messages %}[{{ m.role }}] {{ m.content }}<|end|> {% endfor %}"
TEMPLATES = {"tiny": CHAT_TEMPLATE, "chatml": CHATML, "forgetful": FORGETFUL, "plain": None}
GEMMA = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}{% for m in messages %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}"
    "<end_of_turn>\n{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
"""After Gemma 2's format: no system role, contents trimmed."""
MISTRAL = (
    "{% set rules = messages[0].content if messages[0].role == 'system' else '' %}"
    "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{% for m in messages %}"
    "{% if m.role == 'user' %}"
    "{% if tools and m == users[-1] %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]"
    "{% endif %}"
    "[INST] {% if rules and m == users[-1] %}{{ rules }}\n\n{% endif %}{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' and m.tool_calls %}[TOOL_CALLS] "
    "{{ m.tool_calls | map(attribute='function') | list | tojson }}</s>"
    "{% elif m.role == 'assistant' %} {{ m.content }}</s>"
    "{% elif m.role == 'tool' %}[TOOL_RESULTS] "
    "{{ {'content': m.content, 'call_id': m.tool_call_id} | tojson }}[/TOOL_RESULTS]"
    "{% endif %}{% endfor %}"
)
"""After Mistral's third format: system text and tools stand at the last user message."""
LLAMA = (
    "<|begin_of_text|>{% if messages[0].role == 'system' %}{% set rules = messages[0].content %}"
    "{% set messages = messages[1:] %}{% else %}{% set rules = '' %}{% endif %}"
    "<|start_header_id|>system<|end_header_id|>\n\n"
    "{% if tools %}Environment: ipython\n{% endif %}{{ rules | trim }}<|eot_id|>"
    "{% if tools %}<|start_header_id|>user<|end_header_id|>\n\n"
    "{% for t in tools %}{{ t | tojson }}\n\n{% endfor %}{{ messages[0].content | trim }}<|eot_id|>"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content | tojson }}<|eot_id|>"
    "{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
"""After Llama 3.1's format: tools stand in the first user message, results as JSON texts."""
HERMES = (
    "{% if tools or messages[0].role == 'system' %}<|im_start|>system\n"
    "{{ messages[0].content if messages[0].role == 'system' else 'You are helpful.' }}"
    "{% if tools %}\n\n<tools>{% for t in tools %}\n{{ t | tojson }}{% endfor %}\n</tools>"
    "{% endif %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}"
    "{% if loop.first or messages[loop.index0 - 1].role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n' }}<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or messages[loop.index0 + 1].role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% elif m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""After Qwen2.5's format: the results of parallel calls share a user message."""
DISTILL = (
    "{{ messages[0].content if messages[0].role == 'system' else '' }}"
    "{% for m in messages %}{% if m.role == 'user' %}<|User|>{{ m.content }}"
    "{% elif m.role == 'assistant' %}<|Assistant|>{{ m.content.split('</think>')[-1] }}<|end|>"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}"
)
"""After DeepSeek-R1-Distill's format: it opens a tag, and forgets reasoning."""
THINKING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}"
    "<think>\n{% if '</think>' in m.content %}{{ m.content.split('<think>')[-1] | trim }}"
    "{% else %}{{ '\n</think>\n\n' + m.content }}{% endif %}"
    "{% else %}{{ m.content.split('</think>')[-1] | trim }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n"
    "{% if enable_thinking is defined and not enable_thinking %}{{ '\n</think>\n\n' }}{% endif %}"
    "{% endif %}"
)
"""After Qwen3.5's format: the prompt opens a thought, and the last answer always has one."""
PUBLISHED = {
    "gemma": (GEMMA, ("<start_of_turn>", "<end_of_turn>")),
    "mistral": (MISTRAL, ("[INST]", "[/INST]", "</s>", "[TOOL_CALLS]", "[TOOL_RESULTS]")),
    "llama": (
        LLAMA,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ),
    "hermes": (HERMES, ("<|im_start|>", "<|im_end|>")),
    "distill": (DISTILL, ("<|User|>", "<|Assistant|>")),
    "thinking": (THINKING, ("<|im_start|>", "<|im_end|>")),
}
"""Templates in the formats of published models, and their special tokens."""
TEMPLATES |= {kind: template for kind, (template, _) in PUBLISHED.items()}
TEMPLATES |= {"metaspace": BRACKETS, "swallows": BRACKETS}
TEXTS = "Say what is 6 x 7.\n\nIt is 42, I think; 43?  No:\n 42.", "<think> well </think> ünï€\t\n"


def build_tokenizer(kind: str) -> PreTrainedTokenizerBase:
    tokenizer = train_tokenizer([Conversation((Exchange(*TEXTS),))] * 3, 300)
    if kind in ("chatml", "forgetful", *PUBLISHED):
        names: tuple[str, ...] = ("<|im_start|>", "<|im_end|>")
        if kind in PUBLISHED:
            _, names = PUBLISHED[kind]
        added = [AddedToken(name, special=True, normalized=False) for name in names]
        tokenizer.add_tokens(added, special_tokens=True)
    if kind == "metaspace":
        # Llama's: only the very first word of a text gets a space before it.
        backend = tokenizer.backend_tokenizer
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        backend.decoder = decoders.Metaspace(prepend_scheme="first")
    if kind == "swallows":
        # Phi's: the token takes the white space on its right.
        end = AddedToken("<|end|>", special=True, normalized=False, rstrip=True)
        tokenizer.add_tokens([end], special_tokens=True)
    tokenizer.chat_template = TEMPLATES[kind]
    return tokenizer


@pytest.fixture
def make_tokenizer() -> Callable[[str], PreTrainedTokenizerBase]:
    """From a kind, a key of ``TEMPLATES``, to a tokenizer with that template."""
    return build_tokenizer
