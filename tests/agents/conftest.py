"""Tokenizers of several templates, each trained here in a moment."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import decoders, pre_tokenizers
from transformers import AddedToken, PreTrainedTokenizerBase

from rl.stage.tiny import CHAT_TEMPLATE, train_tokenizer
from rl.texts.conversations import Conversation, Exchange

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
TEMPLATES |= {"metaspace": BRACKETS, "swallows": BRACKETS}
TEXTS = "Say what is 6 x 7.\n\nIt is 42, I think; 43?  No:\n 42.", "<think> well </think> ünï€\t\n"


def build_tokenizer(kind: str) -> PreTrainedTokenizerBase:
    tokenizer = train_tokenizer([Conversation((Exchange(*TEXTS),))] * 3, 300)
    if kind in ("chatml", "forgetful"):
        names = ("<|im_start|>", "<|im_end|>")
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
