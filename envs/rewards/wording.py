"""Repetition and language of a text."""

from __future__ import annotations

import re
import unicodedata

# Chinese and Japanese have no spaces between words: each character counts as a word.
_CHARACTERS = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
_WORD = re.compile(rf"[{_CHARACTERS}]|[^\s{_CHARACTERS}]+")

SCRIPTS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("de", "en", "es", "fr", "it", "nl", "pl", "pt", "tr", "vi"), ("LATIN",)),
    **dict.fromkeys(("bg", "ru", "uk"), ("CYRILLIC",)),
    "ar": ("ARABIC",),
    "el": ("GREEK",),
    "he": ("HEBREW",),
    "hi": ("DEVANAGARI",),
    "ja": ("HIRAGANA", "KATAKANA", "CJK"),
    "ko": ("HANGUL",),
    "th": ("THAI",),
    "zh": ("CJK",),
}
"""Prefixes of the Unicode names of a language's letters, by language code."""


def repetition_penalty(text: str, ngram: int = 3, max_penalty: float = -1.0) -> float:
    """The share of repeated n-grams, times ``max_penalty``. A text of fewer than n words has 0.

    Yeo et al., *Demystifying Long Chain-of-Thought Reasoning* (arXiv:2502.03373, appendix C.2), as
    in open-r1. In contrast to open-r1, each Chinese or Japanese character counts as a word.
    """
    words = _WORD.findall(text.lower())
    total = len(words) - ngram + 1
    if total < 1:
        return 0.0
    distinct = {tuple(words[start : start + ngram]) for start in range(total)}
    return (1 - len(distinct) / total) * max_penalty


def language_consistency(text: str, language: str = "en") -> float:
    """The share of words whose letters all belong to the language's script; 0 without words.

    DeepSeek-R1's language reward (arXiv:2501.12948, section 2.3.2) counts words of the target
    language. This function compares scripts, which distinguishes English from Chinese but not
    English from French. Words without letters (numbers, symbols in formulas) are ignored.

    Args:
        text: the chain of thought.
        language: a key of ``SCRIPTS``.
    """
    scripts = SCRIPTS[language]
    words = _WORD.findall(unicodedata.normalize("NFKC", text))
    lettered = [letters for word in words if (letters := _letters(word))]
    if not lettered:
        return 0.0
    return sum(all(_is_of(a, scripts) for a in letters) for letters in lettered) / len(lettered)


def _letters(word: str) -> list[str]:
    return [character for character in word if character.isalpha()]


def _is_of(letter: str, scripts: tuple[str, ...]) -> bool:
    return unicodedata.name(letter, "").startswith(scripts)
