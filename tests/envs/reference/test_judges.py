"""Judgements and their worth: the paper's oracles, the rule, and judges of one's own."""

from __future__ import annotations

import asyncio
import threading

import pytest

from envs.reference.judges import JudgeFailure, Judgement, ask, final_step, rule_judge
from tools import ToolFailure


@pytest.mark.parametrize(
    ("correct", "probability", "binary", "soft"),
    [
        # Crossing the Reward Bridge: p(1) for the label 1, 1 - p(0) for the label 0.
        (True, 0.9, 1.0, 0.9),
        (False, 0.8, 0.0, 0.2),
        (True, 1.0, 1.0, 1.0),
        (False, 1.0, 0.0, 0.0),
    ],
)
def test_what_a_judgement_is_worth(correct, probability, binary, soft):
    judgement = Judgement(correct, probability)
    assert (judgement.binary, judgement.soft) == (binary, pytest.approx(soft))


@pytest.mark.parametrize("probability", [-0.1, 1.1, float("nan")])
def test_a_probability_is_one(probability):
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        Judgement(True, probability)


@pytest.mark.parametrize(
    ("answer", "reference", "binary", "soft"),
    [
        ("the cat ran away", "the cat sat", 0.0, 0.4),
        ("a flood in the cellar", "a flood in the cellar", 1.0, 1.0),
        ("Flood in cellar!", "a flood in the cellar", 1.0, 1.0),
        ("a dog", "the cat", 0.0, 0.0),
        ("", "the cat", 0.0, 0.0),
    ],
)
async def test_the_rule(answer, reference, binary, soft):
    judgement = await rule_judge("?", reference, answer)
    assert (judgement.binary, judgement.soft) == (binary, pytest.approx(soft))


@pytest.mark.parametrize(
    ("text", "step"),
    [
        ("one\n\n  two  \n \n", "two"),
        ("one", "one"),
        ("\n \n", ""),
        ("", ""),
        ("one\r\ntwo\r\n", "two"),
    ],
)
def test_the_final_step_is_the_last_line_that_says_something(text, step):
    assert final_step(text) == step


class Strict:
    """A judge with a state."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []

    async def __call__(self, question, reference, answer):
        self.asked.append((question, reference, answer))
        await asyncio.sleep(0)
        return Judgement(answer == reference, 0.75)


async def test_any_callable_is_a_judge():
    threads = []

    def plain(question, reference, answer):
        threads.append(threading.current_thread())
        return answer == reference

    async def gives_a_bool(question, reference, answer):
        return answer == reference

    strict = Strict()
    assert await ask(plain, "q", "r", "r") == Judgement(True, 1.0)
    assert threads[0] is not threading.current_thread(), "it may block"
    assert await ask(gives_a_bool, "q", "r", "x") == Judgement(False, 1.0)
    assert await ask(strict, "q", "r", "r") == Judgement(True, 0.75)
    assert await ask(lambda *all_three: strict(*all_three), "q", "r", "x") == Judgement(False, 0.75)
    assert strict.asked == [("q", "r", "r"), ("q", "r", "x")]


async def test_what_is_no_judgement_is_refused():
    with pytest.raises(TypeError, match=r"must give a Judgement or a bool, not 0\.5"):
        await ask(lambda question, reference, answer: 0.5, "q", "r", "a")


def test_a_judges_failure_is_typed():
    assert issubclass(JudgeFailure, ToolFailure)
