r"""The form in which a row's own prompt asks for the answer: ``\boxed``, ``####`` or ``Answer:``.

verl's MATH rows ask for a box, its GSM8K rows for a number behind ``####``, DAPO's rows for a last
line ``Answer: ...``. As in verl's ``gsm8k`` and ``math_dapo`` scores, the last match counts and the
commas of a number are dropped. Unlike there, math-verify compares the answer, and all of the text
is read, not its last 300 characters.
"""

from __future__ import annotations

import re

_BOX = r"\boxed"
_HASHES = re.compile(r"#### (-?[0-9.,]+)")
_LINE = re.compile(r"answer\s*:\s*([^\n]+)", re.IGNORECASE)
_LINE_ASKED = re.compile(r"Answer:(?!\s*\Z)")
"""A prompt that ends in ``Answer:`` is to be continued; it asks for no such line."""


def asks_for_answer(prompt: str) -> bool:
    """Whether a prompt names a form of the answer that math-v0 reads."""
    return _BOX in prompt or "####" in prompt or _LINE_ASKED.search(prompt) is not None


def asked_answer(prompt: str, text: str) -> str | None:
    """The answer in a text without a box, in the form that the prompt names; or None."""
    if _BOX in text:
        return None
    if "####" in prompt:
        numbers = _HASHES.findall(text)
        return numbers[-1].replace(",", "").rstrip(".") or None if numbers else None
    if _LINE_ASKED.search(prompt):
        lines = _LINE.findall(text)
        return lines[-1].strip(" *$").rstrip(".").strip(" *$") or None if lines else None
    return None
