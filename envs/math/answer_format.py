r"""Answer formats that a row's own prompt requires: ``\boxed``, ``####`` or ``Answer:``.

verl's MATH rows require a box, its GSM8K rows a number after ``####``, DAPO's rows a last line
``Answer: ...``. As in verl's ``gsm8k`` and ``math_dapo`` scores, the last match counts, and commas
in numbers are dropped. Unlike there, math-verify compares the answer, and the whole text is read,
not only its last 300 characters.
"""

from __future__ import annotations

import re

_BOX = r"\boxed"
_HASHES = re.compile(r"#### (-?[0-9.,]+)")
_LINE = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_LINE_ASKED = re.compile(r"Answer:(?!\s*\Z)")
"""A prompt that ends with ``Answer:`` wants a continuation, not such a line."""


def asks_for_answer(prompt: str) -> bool:
    """Whether a prompt requires an answer format that math-v0 reads."""
    return _BOX in prompt or "####" in prompt or _LINE_ASKED.search(prompt) is not None


def asked_answer(prompt: str, text: str) -> str | None:
    """The answer in a text without a box, in the prompt's format; None if there is none."""
    if _BOX in text:
        return None
    if "####" in prompt:
        numbers = _HASHES.findall(text)
        return numbers[-1].replace(",", "").rstrip(".") or None if numbers else None
    if _LINE_ASKED.search(prompt):
        lines = _LINE.findall(text)
        return lines[-1].strip(" *$").rstrip(".").strip(" *$") or None if lines else None
    return None
