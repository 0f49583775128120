"""Writes a user's settings of a chat template into the template itself.

A checkpoint's tokenizer then contains the settings, and every program that loads it renders
messages as the run does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from transformers import PreTrainedTokenizerBase

_ARGUMENTS = re.compile(r"^(?:\{% set \w+ = [^\n]* %\}\{# chat\.template_kwargs #\}\n)+")
_NAME = re.compile(r"\{% set (\w+) = ")
_PREFILL = re.compile(
    r'\{\{ ("(?:[^"\\]|\\.)*") if add_generation_prompt else "" \}\}\{# chat\.prefill #\}$'
)


def set_template(
    tokenizer: PreTrainedTokenizerBase,
    source: str = "",
    arguments: Mapping[str, Any] | None = None,
    prefill: str = "",
) -> None:
    """Set a tokenizer's chat template with these settings.

    Args:
        tokenizer: the tokenizer whose ``chat_template`` is replaced.
        source: the template in Jinja, or "" for the tokenizer's own.
        arguments: the template's arguments besides the messages. They replace arguments of the same
            names that an earlier call wrote.
        prefill: text with which every assistant message starts. If the template's prompt already
            ends with this text, the template stays unchanged.

    Raises:
        ValueError: there are arguments or a prefill, but no template.
    """
    if source:
        tokenizer.chat_template = source
    if not (arguments or prefill):
        return
    if tokenizer.chat_template is None:
        raise ValueError("the tokenizer has no chat template: give one (chat.template=FILE)")
    _change(tokenizer, lambda text: _with_arguments(text, arguments or {}))
    if prefill:
        _change(tokenizer, lambda text: _PREFILL.sub("", text))
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": "x"}], tokenize=False, add_generation_prompt=True
        )
        if not str(prompt).rstrip().endswith(prefill.rstrip()):
            _change(tokenizer, lambda text: _with_prefill(text, prefill))


def prefill_of(source: Any) -> str:
    """The prefill that :func:`set_template` wrote into a template."""
    text = source.get("default", "") if isinstance(source, Mapping) else source
    found = _PREFILL.search(text or "")
    return "" if found is None else str(json.loads(found[1]))


def _change(tokenizer: PreTrainedTokenizerBase, change: Callable[[str], str]) -> None:
    """Apply ``change`` to the template, or to each template of a tokenizer with several."""
    source: Any = tokenizer.chat_template
    if isinstance(source, Mapping):
        tokenizer.chat_template = {name: change(text) for name, text in source.items()}
    else:
        tokenizer.chat_template = change(source)


def _with_arguments(source: str, arguments: Mapping[str, Any]) -> str:
    found = _ARGUMENTS.match(source)
    before, rest = (found[0], source[found.end() :]) if found else ("", source)
    kept = [line for line in before.splitlines() if _name(line) not in arguments]
    # A line break after a block is not part of a template's text.
    new = [
        f"{{% set {name} = {_literal(value)} %}}{{# chat.template_kwargs #}}"
        for name, value in arguments.items()
    ]
    return "".join(f"{line}\n" for line in (*kept, *new)) + rest


def _name(line: str) -> str:
    found = _NAME.match(line)
    return found[1] if found else ""


def _with_prefill(source: str, prefill: str) -> str:
    # Jinja drops a template's last line break.
    text = json.dumps(prefill, ensure_ascii=False)
    end = f'{{{{ {text} if add_generation_prompt else "" }}}}{{# chat.prefill #}}'
    return source.removesuffix("\n") + end


def _literal(value: Any) -> str:
    """A plain value in Jinja's syntax."""
    return "none" if value is None else json.dumps(value, ensure_ascii=False)
