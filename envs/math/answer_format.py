r"""Answer formats that a row's own prompt requires: ``\boxed``, ``####`` or ``Answer:``.

verl's MATH rows require a box, its GSM8K rows a number after ``####``, and DAPO's rows a last line
``Answer: ...``. As in verl's ``gsm8k`` and ``math_dapo`` scores, the last match counts, and commas
in numbers are dropped. In contrast to verl, ``#### $18`` and ``#### **18**`` are numbers.
math-verify compares the answer, and it is sought in the whole text, not only in its last 300
characters.
"""

from __future__ import annotations

import re

_BOX = r"\boxed"
_HASHES = re.compile(r"#### \**(-?)(?:\\?\$)?(-?[0-9.,]+)")
_LINE = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_LINE_ASKED = re.compile(r"Answer:(?!\s*\Z)")
"""Matches a prompt that requires an ``Answer:`` line. A prompt that ends with ``Answer:`` does
not: it only starts the answer."""


def asks_for_answer(prompt: str) -> bool:
    """Whether a prompt requires an answer format that math-v0 reads."""
    return _BOX in prompt or "####" in prompt or _LINE_ASKED.search(prompt) is not None


def asked_answer(prompt: str, text: str) -> str | None:
    """The answer in a text without a box, in the format that the prompt requires, or None."""
    if _BOX in text:
        return None
    if "####" in prompt:
        numbers = _HASHES.findall(text)
        return "".join(numbers[-1]).replace(",", "").rstrip(".") or None if numbers else None
    if _LINE_ASKED.search(prompt):
        lines = _LINE.findall(text)
        return lines[-1].strip(" *$").rstrip(".").strip(" *$") or None if lines else None
    return None
