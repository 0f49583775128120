"""Splits a text into words, for every backend that matches words."""

from __future__ import annotations

import re

_WORD = re.compile(r"\w+")
_STOP_TEXT = """
a an and are as at be but by for from had has have he her his how i in is it its of on or she that
the their they this to was were what when where which who why will with
"""
STOP_WORDS = frozenset(_STOP_TEXT.split())


def tokenize(text: str) -> list[str]:
    """The words of a text in lower case, without possessive 's and the commonest English words."""
    words = _WORD.findall(text.lower().replace("'s", "").replace("’s", ""))
    return [word for word in words if word not in STOP_WORDS]
