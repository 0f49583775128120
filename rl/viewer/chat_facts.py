"""The chat template of a run, compared with that of its model. Nothing is downloaded."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from rl.viewer.episodes.tokens import TOKENIZER, checkpoint_files, file_of_model
from rl.viewer.finding import ChatFacts

logger = logging.getLogger(__name__)
_TEMPLATE, _CONFIG = "chat_template.jinja", "tokenizer_config.json"
_MARK = re.compile(r"<\|[A-Za-z_]+\|>|<｜[A-Za-z_▁]+｜>|<(?:start|end)_of_turn>")
"""Marks of messages that are single tokens in the models whose templates have them."""


def chat_facts(folder: Path, config: Mapping[str, Any]) -> ChatFacts | None:
    """What is known about the chat template of the run in ``folder``.

    Args:
        folder: the run's folder, whose checkpoints hold the template.
        config: the content of config.json.

    Returns:
        The facts, or None if the run uses the model's own template, if the model has none, or if a
        file is not on this machine.
    """
    chat, model = config.get("chat"), str(config.get("model", ""))
    if not isinstance(chat, Mapping) or not chat.get("template"):
        return None
    own = _source(file_of_model(model, _TEMPLATE), file_of_model(model, _CONFIG))
    tokenizer = _tokenizer(file_of_model(model, TOKENIZER))
    templates = checkpoint_files(folder, _TEMPLATE)
    used = _source(templates[0] if templates else None, None)
    if not (own and used and tokenizer):
        return None
    marks = list(dict.fromkeys(_MARK.findall(used)))
    known = [mark for mark in marks if tokenizer.token_to_id(mark) is not None]
    # A template of the model's own family may have a mark that this model lacks.
    return ChatFacts(own != used, () if known else tuple(marks))


def _source(template: Path | None, config: Path | None) -> str | None:
    """The template in a file of its own, or in the tokenizer's settings."""
    try:
        if template is not None and template.is_file():
            return template.read_text(encoding="utf-8")
        if config is not None and config.is_file():
            found = json.loads(config.read_text(encoding="utf-8")).get("chat_template")
            return found if isinstance(found, str) else None
    except (OSError, ValueError, AttributeError) as error:
        logger.warning("a chat template cannot be read: %s", error)
    return None


def _tokenizer(path: Path | None) -> Tokenizer | None:
    if path is None or not path.is_file():
        return None
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises no other type.
        logger.warning("%s cannot be read: %s", path, error)
        return None
