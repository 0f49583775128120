"""Settings of the chat template, which turns messages into a prompt."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.published_templates import TEMPLATES

_WORDS = {"true": True, "false": False, "none": None, "null": None}


@dataclass(frozen=True, kw_only=True)
class ChatConfig:
    """The chat template.

    A checkpoint includes it, so commands that load the checkpoint need no settings.
    """

    template: str = ""
    """A Jinja file, or a published prompt: r1-zero, orz, qwen-math. Empty for the model's own
    template."""
    template_kwargs: str = ""
    """Arguments of the template besides the messages, as in "enable_thinking=False"."""
    prefill: str = ""
    """Text with which every answer begins and which is not sampled, as in "<think>". Format
    rewards include it."""

    def __post_init__(self) -> None:
        self.arguments()
        if self.template and self.template not in TEMPLATES and not self._path.is_file():
            raise ValueError(
                f"template ({self.template!r}) must be a file that exists or one of "
                f"{', '.join(TEMPLATES)}"
            )

    @property
    def _path(self) -> Path:
        return Path(self.template).expanduser()

    def source(self) -> str:
        """The Jinja source of the template, or "" for the model's own template.

        Raises:
            ValueError: the template's file cannot be read.
        """
        if not self.template or self.template in TEMPLATES:
            return TEMPLATES.get(self.template, "")
        try:
            return self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ValueError(f"chat.template ({self.template}) cannot be read: {error}") from error

    def arguments(self) -> Mapping[str, Any]:
        """The values of ``template_kwargs``: True, False, None, numbers, or text.

        Raises:
            ValueError: ``template_kwargs`` does not have the form key=value key=value.
        """
        try:
            words = shlex.split(self.template_kwargs)
        except ValueError as error:
            raise ValueError(f"template_kwargs ({self.template_kwargs}): {error}") from error
        pairs = dict[str, Any]()
        for word in words:
            name, equals, text = word.partition("=")
            if not equals or not name.isidentifier():
                raise ValueError(
                    f"template_kwargs ({word!r}) must be of the form enable_thinking=False"
                )
            pairs[name] = _value(text)
        return pairs


def _value(text: str) -> Any:
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text
    return text


OWN_TEMPLATE = ChatConfig()
"""The model's own template, unchanged."""
