"""Splits a text into terms, for every backend that matches words."""

from __future__ import annotations

import re
import unicodedata

_STOP_TEXT = """
a an and are as at be but by for from had has have he her his how i in is it its of on or she that
the their they this to was were what when where which who why will with
"""
STOP_WORDS = frozenset(_STOP_TEXT.split())
# Blocks of scripts that are written without spaces, and of Hangul, whose words carry particles.
_BLOCKS = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0xF900, 0xFAFF), (0x20000, 0x323AF)),  # Han
    *((0x3005, 0x3007), (0x3031, 0x312F), (0x31A0, 0x31BF), (0x31F0, 0x31FF), (0xFF66, 0xFF9F)),
    *((0x1AFF0, 0x1B16F), (0x1100, 0x11FF), (0x3131, 0x318E), (0xA960, 0xA97F), (0xAC00, 0xD7FF)),
    *((0xFFA0, 0xFFDC), (0x0E01, 0x0EFF), (0x1000, 0x109F), (0xA9E0, 0xA9FF), (0xAA60, 0xAA7F)),
    *((0x1780, 0x17FF), (0x1950, 0x19DF), (0x1A20, 0x1AAF), (0xAA80, 0xAADF)),  # Khmer, Tai scripts
    *((0x1B00, 0x1B7F), (0xA980, 0xA9DF), (0xAA00, 0xAA5F)),  # Balinese, Javanese, Cham
)


def _ranges(first: int, last: int) -> str:
    """The letters and marks of a block, as ranges of a character class."""
    if last - first > 1000:
        return f"{chr(first)}-{chr(last)}"
    block = "".join(
        char if unicodedata.category(char)[0] in "LM" or char == "〇" else " "
        for char in map(chr, range(first, last + 1))
    )
    return "".join(f"{run[0]}-{run[-1]}" for run in block.split())


_UNSPACED = "".join(_ranges(*block) for block in _BLOCKS)
_WORD = re.compile(r"\w+")
_WORD_OR_RUN = re.compile(rf"[^\W{_UNSPACED}]+|[{_UNSPACED}]+")
_RUN = re.compile(rf"[{_UNSPACED}]")
# A fast test that most other texts fail: the first block, and general punctuation.
_MAY_HOLD_RUNS = re.compile("[^\0-\u0e00\u2000-\u2fff]")


def tokenize(text: str, *, characters: bool = False) -> list[str]:
    """The words of a text in lower case, without possessive 's and the commonest English words.

    A run of a script without spaces gives its overlapping pairs of characters, as Lucene's
    CJKBigramFilter does: 北京是 gives 北京 and 京是.

    Args:
        text: a passage or a query.
        characters: whether such a run also gives its characters, so that a query of one character
            finds a passage.
    """
    text = text.lower().replace("'s", "").replace("’s", "")
    if not text.isascii() and _MAY_HOLD_RUNS.search(text):
        words = [term for found in _WORD_OR_RUN.findall(text) for term in _terms(found, characters)]
    else:
        words = _WORD.findall(text)
    return [word for word in words if word not in STOP_WORDS]


def _terms(found: str, characters: bool) -> list[str]:
    """A word, or the terms of a run of a script without spaces."""
    if not _RUN.match(found):
        return [found]
    # Half-width kana and decomposed syllables are other spellings of the same characters.
    run = unicodedata.normalize("NFKC", found)
    pairs = [run[i : i + 2] for i in range(len(run) - 1)]
    return [*run, *pairs] if characters or not pairs else pairs
