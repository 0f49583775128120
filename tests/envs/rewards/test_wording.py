"""Repetition and language: the papers' values, and what a text could do to look better."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.rewards.wording import SCRIPTS, language_consistency, repetition_penalty


@pytest.mark.parametrize(
    ("text", "ngram", "penalty"),
    [
        ("", 3, 0.0),
        ("two words", 3, 0.0),
        ("all of these words differ", 3, 0.0),
        ("a a a a a", 3, -2 / 3),  # Three trigrams, one of them distinct.
        ("A a\ta \n a a", 3, -2 / 3),
        ("a b a b a b", 2, -0.6),  # ab ba ab ba ab.
        ("哈哈哈哈哈", 3, -2 / 3),
        ("哈 哈 哈哈哈", 3, -2 / 3),
        ("да да да да", 2, -2 / 3),
    ],
)
def test_repetition(text, ngram, penalty):
    assert repetition_penalty(text, ngram) == pytest.approx(penalty)
    assert repetition_penalty(text, ngram, -0.5) == pytest.approx(penalty / 2)


@given(st.text(max_size=40), st.integers(1, 4))
def test_repetition_stays_in_range_and_never_falls_by_saying_it_again(text, ngram):
    once = repetition_penalty(text, ngram)
    assert -1.0 < once <= 0.0
    assert repetition_penalty(f"{text} {text} {text}", ngram) <= once


@pytest.mark.parametrize(
    ("text", "language", "share"),
    [
        (" ".join(["word"] * 90 + ["слово"] * 10), "en", 0.9),
        ("word " * 90 + "字" * 10, "en", 0.9),
        ("", "en", 0.0),
        ("12 + 30 = 42 🙂 <>", "en", 0.0),
        ("so 12 + 30 = 42", "en", 1.0),
        ("naïve Straße ﬁne", "en", 1.0),
        ("mixedслово", "en", 0.0),
        ("我们 think", "zh", 2 / 3),
        ("これは漢字カナ", "ja", 1.0),
        ("これは", "zh", 0.0),
        ("안녕 세계", "ko", 1.0),
        ("नमस्ते दुनिया", "hi", 1.0),
    ],
)
def test_language(text, language, share):
    assert language_consistency(text, language) == pytest.approx(share)


def test_every_script_knows_its_own_letters():
    samples = {"ar": "سلام", "el": "λόγος", "he": "שלום", "ru": "мир", "th": "ไทย", "bg": "мир"}
    for language, text in samples.items():
        assert language_consistency(text, language) == 1.0
        assert language_consistency(text, "en") == 0.0
    assert set(samples) < set(SCRIPTS)
