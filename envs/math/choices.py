"""Multiple-choice rows: the options follow the question, and the answer is a letter.

A column ``choices`` or ``options`` holds a list, ``{"A": text}`` or ``{"text": [...], "label":
[...]}``. The answer is a letter, an index from 0, or an option's text. In GPQA's rows the options
are ``Correct Answer`` and ``Incorrect Answer 1`` to ``3``; a hash determines their order.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from envs.datasets import NoAnswer, Row, is_empty
from envs.math.verification.units import UNWRAPPED

_OPTIONS = ("choices", "options")
_ANSWERS = (
    *("answerkey", "answer_idx", "answer_index", "correct", "correct_option"),
    *("answer", "label", "target", "gold"),
)
_WRONG = tuple(f"incorrect answer {i}" for i in (1, 2, 3))
_LETTERED = re.compile(r"\(?([A-Z])[).:]\s*")


def is_choice(columns: Mapping[str, Any]) -> bool:
    """Whether a row, by the names of its columns in lower case, is a multiple-choice question."""
    return "correct answer" in columns or any(columns.get(name) for name in _OPTIONS)


def options_and_letter(
    row: Row, columns: Mapping[str, Any], question: str
) -> tuple[Sequence[str], str]:
    """The texts of a row's options, in order, and the letter of the right one.

    Args:
        row: the row, for messages.
        columns: the columns by name in lower case.
        question: the row's question.

    Raises:
        NoAnswer: the column of the answer is empty.
        ValueError: the options or the answer cannot be read.
    """
    if "correct answer" in columns:
        right = str(columns["correct answer"]).strip()
        texts = [right, *(str(columns[name]).strip() for name in _WRONG if name in columns)]
        texts.sort(key=lambda text: hashlib.blake2b(f"{question}{text}".encode()).digest())
        return texts, ascii_uppercase[texts.index(right)]
    name = next(name for name in _OPTIONS if columns.get(name))
    texts, labels = _options(row, name, columns[name])
    keys = [key for key in _ANSWERS if key in {column.lower() for column in row.columns}]
    key = next((key for key in keys if not is_empty(columns.get(key))), None)
    # HellaSwag and others publish test rows with an empty label, or with -1.
    if keys and (key is None or str(columns[key]).strip() == "-1"):
        raise NoAnswer(f"{row.where}, column {key or keys[0]}: expected the answer's option")
    if key is None:
        raise ValueError(
            f"{row.where}: options without an answer; expected one of {', '.join(_ANSWERS)}; it "
            f"has {', '.join(row.columns)}"
        )
    return texts, ascii_uppercase[_place(row, key, columns[key], texts, labels)]


def letter_of(answer: str, options: Sequence[str]) -> str:
    """The letter of the only option whose text is the answer, or the answer itself."""
    same = [place for place, text in enumerate(options) if _plain(text) == _plain(answer)]
    return ascii_uppercase[same[0]] if len(same) == 1 else answer


def _plain(text: str) -> str:
    """The text in lower case, without dollar signs, blanks, and commands around words."""
    return "".join(UNWRAPPED.sub(r"\1", text).lower().replace("$", "").rstrip(". ").split())


def _options(row: Row, name: str, value: Any) -> tuple[list[str], list[str]]:
    """The texts and the labels of the options."""
    if isinstance(value, Mapping) and {"text", "label"} <= set(value):
        texts, labels = list(value["text"]), [str(label) for label in value["label"]]
    elif isinstance(value, Mapping):
        labels, texts = [str(key) for key in value], list(value.values())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        texts, labels = list(value), list(ascii_uppercase[: len(value)])
    else:
        texts, labels = [], []
    if not 2 <= len(texts) <= len(ascii_uppercase) or len(texts) != len(labels):
        raise ValueError(f"{row.where}, column {name}: expected options, got {value!r:.40}")
    texts = [str(text).strip() for text in texts]
    found = [_LETTERED.match(text) for text in texts]
    if all(match and match[1] == label for match, label in zip(found, labels, strict=True)):
        texts = [text[match.end() :] for text, match in zip(texts, found, strict=True) if match]
    return texts, labels


def _place(row: Row, key: str, value: Any, texts: Sequence[str], labels: Sequence[str]) -> int:
    """The index of the right option."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        place = int(value) if value == int(value) else -1
    else:
        text = str(value).strip()
        letter = text.strip("().").upper()
        if letter in labels:
            place = labels.index(letter)
        elif text in texts:
            place = texts.index(text)
        else:
            place = int(text) if text.isdecimal() else -1
    if not 0 <= place < len(texts):
        raise ValueError(
            f"{row.where}, column {key}: expected one of {', '.join(labels)}, a place from 0, or "
            f"an option's text; got {value!r:.40}"
        )
    return place
