"""R1-Searcher's and Search-R1's rewards, on what their own code answers."""

from __future__ import annotations

import pytest

from envs.rewards.retrieval import (
    search_r1_format,
    search_r1_reward,
    searcher_calls,
    searcher_format,
    searcher_stage1_reward,
    searcher_stage2_reward,
    searcher_zero_reward,
    tagged_answer,
)

GOLDS = ["Barack Obama"]
SEARCH = (
    "I look. <|begin_of_query|>president<|end_of_query|>"
    "<|begin_of_documents|>\n(1)The president is Obama.\n<|end_of_documents|>\n\n"
)
ANSWER = "So.</think><answer>Barack Obama</answer>"
ELEVEN = "Barack Obama one two three four five six seven eight nine"
FULL = SEARCH + ANSWER


@pytest.mark.parametrize(
    ("text", "zero", "stage1", "stage2"),
    [
        (FULL, 1.0, 2.0, 1.0),
        (ANSWER, 1.0, 1.5, 1.0),
        (FULL.replace("Barack Obama<", "Bush<"), 0.0, 0.0, 0.0),
        (ANSWER.replace("Barack Obama", "Bush"), 0.0, -0.5, 0.0),
        (FULL.replace("Barack Obama<", "Obama<"), 2 / 3, 0.0, 2 / 3),
        (FULL.replace("Barack Obama<", f"{ELEVEN}<"), 4 / 13 - 2, 2.0, 4 / 13),
        (f"<think>{FULL}", -1.0, 1.5, 0.0),
        (FULL.replace("<|end_of_query|>", ""), -1.0, 1.5, 0.0),
        ("So.</think>Barack Obama", -2.0, -1.0, -1.0),
        (FULL.replace("So.", "The assistant says so."), -1.0, 2.0, 1.0),
        (FULL.replace("(1)The", "(1)总统 The"), 1.0, 2.0, 1.0),
        (FULL.replace("So.", "总统"), -1.0, 2.0, 0.0),
        ("", -2.0, -1.0, -1.0),
        ("<answer>" * 9 + "</answer>" * 9, -2.0, -1.0, -1.0),
        (FULL + ANSWER, -1.0, 1.5, 0.0),
    ],
)
def test_r1_searcher(text, zero, stage1, stage2):
    assert sum(searcher_zero_reward(text, GOLDS).values()) == pytest.approx(zero)
    assert sum(searcher_stage1_reward(text, GOLDS).values()) == pytest.approx(stage1)
    assert sum(searcher_stage2_reward(text, GOLDS).values()) == pytest.approx(stage2)


def test_r1_searchers_paper_takes_two_for_a_wrong_format():
    assert searcher_stage2_reward(f"<think>{FULL}", GOLDS, penalty=-2.0)["format"] == -2.0


def test_searches_are_counted_only_where_every_tag_is_in_its_form():
    assert searcher_calls(ANSWER) == 0
    assert searcher_calls(FULL) == 1
    assert searcher_calls(SEARCH + FULL) == 2
    assert searcher_calls(FULL.replace("\n(1)", " (1)")) is None
    assert searcher_calls(FULL.replace("<|end_of_documents|>\n\n", "<|end_of_documents|>")) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (FULL.replace("</answer>", ""), "not exactly one <answer>"),
        (FULL.replace("<answer>B", "<answer>begin_of_query B"), "inside the answer"),
        (FULL.replace("</think>", ""), "not exactly one </think>"),
        (FULL.replace("So.", "Assistant"), "the word assistant"),
    ],
)
def test_r1_searchers_faults_are_named(text, says):
    fault = searcher_format(text)
    assert fault is not None and says in fault


THOUGHT = "<think>t</think>"
LOOKED = f"{THOUGHT}\n<search>q</search>\n\n<information>It is Paris.</information>\n\n{THOUGHT} "
V03 = {"structure": 0.2, "final": 0.1, "retrieval": 0.0}


def said(answer: str) -> str:
    return f"{LOOKED}<answer> {answer} </answer>"


@pytest.mark.parametrize(
    ("text", "plain", "format_reward"),
    [
        (said("Paris"), 1.0, 1.0),
        (said("the Paris."), 1.0, 1.0),
        (said("Paris, France"), 0.0, 0.2),
        ("no answer", 0.0, 0.0),
        (f"first {said('Paris')}", 1.0, 0.8),
        (f"first {said('Rome')}", 0.0, 0.1),
        (f"{said('Paris')}<|im_end|>", 1.0, 0.8),
        (f"{said('Paris')}\n", 1.0, 1.0),
        ("", 0.0, 0.0),
        (said("Rome") + said("Paris"), 1.0, 0.8),
        (said("Paris") + "<answer> Rome", 1.0, 0.8),
        ("<answer>" * 5 + "Paris" + "</answer>" * 5, 0.0, 0.1),
    ],
)
def test_search_r1(text, plain, format_reward):
    found = search_r1_reward(text, ["Paris"], structure=0.0, final=0.0)
    assert sum(found.values()) == pytest.approx(plain)
    assert sum(search_r1_reward(text, ["Paris"], **V03).values()) == pytest.approx(format_reward)


def test_search_r1_pays_for_a_gold_that_was_read_beside_the_format_only():
    def reward(text, golds=("Paris",)):
        return sum(search_r1_reward(text, golds, retrieval=0.1).values())

    assert reward(said("Rome")) == pytest.approx(0.3)
    assert reward(said("Rome"), ["Oslo"]) == pytest.approx(0.2)
    assert reward(said("Rome"), ["the"]) == pytest.approx(0.2), "a gold without words is in no text"
    assert reward(said("Paris")) == pytest.approx(1.0)
    assert reward(f"first {said('Rome')}") == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (THOUGHT, "ends after: thought"),
        ("<answer>x</answer>", "<answer> does not belong after: start"),
        (f"{THOUGHT}<search>q</search>{THOUGHT}", "<think> does not belong after: searched"),
        ("<think><think>t</think></think>", "<think> does not belong after: in think"),
        (f"{THOUGHT} and <answer>x</answer>", "text between the tags, after: thought"),
    ],
)
def test_search_r1s_faults_are_named(text, says):
    fault = search_r1_format(text)
    assert fault is not None and says in fault


def test_the_last_whole_pair_holds_the_answer():
    assert tagged_answer("<answer>a</answer> <answer> b </answer>") == "b"
    assert tagged_answer("<answer>a</answer><answer>b") == "a"
    assert tagged_answer("</answer>a<answer>") is None
