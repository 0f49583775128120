"""Logic-RL's reward: its published cases, and answers that try to earn without knowing."""

from __future__ import annotations

import pytest

from envs.logic.knights.reward import claimed, logic_rl_reward, right_format, transcript_reward

ROLES = {"Zoey": "knight", "Oliver": "knave"}
THOUGHT = "<think> Let me see. </think>"
RIGHT = "<answer> (1) Zoey is a knight\n(2) Oliver is a knave </answer>"


def total(response: str) -> float:
    return sum(logic_rl_reward(response, ROLES).values())


def said(answer: str) -> str:
    return f"{THOUGHT} <answer>{answer}</answer>"


@pytest.mark.parametrize(
    ("response", "reward"),
    [
        # What the authors' code gives.
        (f"{THOUGHT} {RIGHT}", 3),
        (said("Zoey is a knight, Oliver is a knight"), -0.5),
        (said("Zoey is a knight"), -1),
        (said("Zoey is a knight, Oliver is a knave, not a knight"), -1),
        (f"{THOUGHT} Zoey is a knight, Oliver is a knave", -3),
        (f"{THOUGHT} {RIGHT} {RIGHT}", -3),
        (f"{THOUGHT} {RIGHT} That was easy.", 3),
        (f"{THOUGHT} <answer></answer>", -1),
    ],
)
def test_the_published_cases(response, reward):
    assert total(response) == reward
    # The prompt's own end opens the thoughts, or the response does.
    for header in ("Assistant:", "<|im_start|>assistant\n"):
        transcript = f"User: Who is what? <answer>\n{header} {response}"
        assert sum(transcript_reward(transcript, ROLES).values()) == reward


def test_a_transcript_without_a_header_has_no_answer():
    assert sum(transcript_reward(f"{THOUGHT} {RIGHT}", ROLES).values()) == -1
    assert sum(transcript_reward(RIGHT, ROLES).values()) == -3


def test_a_response_stands_behind_the_first_header():
    twice = f"Assistant: {THOUGHT} {RIGHT} Assistant: {THOUGHT} {RIGHT}"
    assert sum(transcript_reward(twice, ROLES).values()) == -3


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        ("zoey IS A Knight and oliver is  a\nKNAVE", 3),
        ("Oliver is a knave, Zoey is a knight", 3),
        ("Zoey is a knave, Oliver is a knight", -0.5),
        # Each person twice, so that one of the two is right.
        ("Zoey is a knight, Zoey is a knave, Oliver is a knight, Oliver is a knave", -1),
        ("Zoey is a knight, Oliver is a knave. Zoey is a knight, Oliver is a knave", -1),
        # One twice and one never.
        ("Zoey is a knight, Zoey is a knave", -1),
        ("Zoey is a knight, Emma is a knave", -1),
        ("Zoey is a knight or knave", -1),
        ("Zoey is knight, Oliver is knave", -1),
        ("XZoey is a knight, Oliver is a knave", -1),
        ("Zoey is a knights, Oliver is a knaves", -1),
        ("knight knave", -1),
        ("Zoey is a \N{KELVIN SIGN}night, Oliver is a knave", 3),
        ("Zoey iſ a knight, Oliver is a knave", 3),
        ("Zoey\N{NO-BREAK SPACE}is a\N{EM SPACE}knight, Oliver is a knave", 3),
        ("ÉZoey is a knight, Oliver is a knave", -1),
        ("Zoeyé is a knight, Oliver is a knave", -1),
        ("Mary-Zoey is a knight, Oliver is a knave", 3),
    ],
)
def test_answers(answer, reward):
    assert total(said(answer)) == reward


@pytest.mark.parametrize(
    "response",
    [
        "",
        RIGHT,
        "<think> </think>" * 100,
        "<think></think><answer></answer>" * 100,
        f"{RIGHT} {THOUGHT}",
        f"<think> {RIGHT} </think>",
        f"{THOUGHT} <think> {RIGHT}",
        f"{THOUGHT} {RIGHT} <answer>",
        f"{THOUGHT} {RIGHT} </think>",
        THOUGHT + RIGHT.replace("</answer>", ""),
        THOUGHT + RIGHT.replace("<answer>", "<Answer>"),
    ],
)
def test_wrong_formats_earn_the_least(response):
    assert not right_format(response)
    assert logic_rl_reward(response, ROLES) == {"format": -1.0, "answer": -2.0}


def test_what_an_answer_claims():
    assert claimed("zoey is a Knight, Oliver is a knave", ROLES) == ROLES
    assert claimed("", ROLES) is None
