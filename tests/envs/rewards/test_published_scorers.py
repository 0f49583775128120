"""Totals that the authors' published scorers give to these texts, and the named exceptions."""

from __future__ import annotations

import pytest

from envs.logic.knights.reward import transcript_reward
from envs.rewards.answers import exact_match, f1
from envs.rewards.retrieval import (
    search_r1_reward,
    searcher_stage1_reward,
    searcher_stage2_reward,
    searcher_zero_reward,
)

ROLES = {"Zoey": "knight", "Oliver": "knave"}
SEARCHED = (
    "t<|begin_of_query|>q<|end_of_query|>\n\n<|begin_of_documents|>\n(1)d\n<|end_of_documents|>\n\n"
    "u</think><answer>{}</answer>"
)
INFORMED = (
    "<think>t</think><search>q</search>\n\n<information>{}</information>\n\n"
    "<think>t</think><answer>{}</answer>"
)


@pytest.mark.parametrize(
    ("answer", "total"),
    [
        ("Zoey\xa0is a knight, Oliver is a knave", 3),
        ("Zoey is a knight\nOliver IS A Knave", 3),
        ("ÉZoey is a knight, Oliver is a knave", -1),
        ("Zoey is a knight, Oliver is a knaves", -1),
        ("Zoey is a knight, Oliver is a knight", -0.5),
    ],
)
def test_logic_rl(answer, total):
    text = f"Assistant: <think> </think> <answer>{answer}</answer>"
    assert sum(transcript_reward(text, ROLES).values()) == total


@pytest.mark.parametrize(
    ("answer", "gold", "right", "share"),
    [
        ("the Obama", "obama.", 1, 1),
        ("Barack Obama", "Obama", 0, 2 / 3),
        ("yes it is", "yes", 0, 0),
        ("well-known", "well known", 0, 0),
        ("an", "the", 1, 0),
    ],
)
def test_hotpotqa(answer, gold, right, share):
    assert exact_match(answer, [gold]) == right
    # An F1 over no words is 0 there.
    assert f1(answer, [gold]) == pytest.approx(share)


@pytest.mark.parametrize(
    ("answer", "gold", "zero", "stage1", "stage2"),
    [
        ("Obama", "Obama", 1, 2, 1),
        ("well known", "well-known", 1, 2, 1),
        ("True", "yes", 1, 2, 1),
        ("Obama Barack", "Barack Obama", 1, 2, 1),
        ("Bush", "Obama", 0, 0, 0),
        # In their code a gold without words is covered by a text without words: 2.
        ("", "", 0, 0, 0),
    ],
)
def test_r1_searcher(answer, gold, zero, stage1, stage2):
    text = SEARCHED.format(answer)
    assert sum(searcher_zero_reward(text, [gold]).values()) == pytest.approx(zero)
    assert sum(searcher_stage1_reward(text, [gold]).values()) == pytest.approx(stage1)
    assert sum(searcher_stage2_reward(text, [gold]).values()) == pytest.approx(stage2)


def test_an_answer_that_is_never_closed_ends_with_the_text():
    text = "</answer> <answer> Barack Obama"
    # In R1-Searcher's code the end-of-sequence token is a third word: an F1 of .8.
    assert searcher_zero_reward(text, ["Barack Obama"]) == {"answer": 1.0, "format": -2.0}


@pytest.mark.parametrize(
    ("read", "answer", "gold", "total"),
    [
        ("Paris", "the Paris", "Paris", 1.0),
        ("Paris", "Rome", "Paris", 0.3),
        ("Lyon", "Rome", "Paris", 0.2),
        # In their code a gold without words is found in every passage: 0.3.
        ("Lyon", "Rome", "the", 0.2),
    ],
)
def test_search_r1(read, answer, gold, total):
    rewards = search_r1_reward(INFORMED.format(read, answer), [gold], 0.2, 0.1, 0.1)
    assert sum(rewards.values()) == pytest.approx(total)
