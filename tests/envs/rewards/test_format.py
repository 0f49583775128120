"""ReSearch's format, case by case."""

from __future__ import annotations

import pytest

from envs.rewards.format import boxed_answer, research_format

SEARCHED = (
    "<think> t </think> <search> q </search> <result>\nd\n</result> "
    "<think> u </think> <answer> \\boxed{x} </answer>"
)


@pytest.mark.parametrize(
    "text",
    [
        SEARCHED,
        "<think></think><answer>\\boxed{x}</answer>",
        SEARCHED.replace(" <think> u </think>", ""),
        SEARCHED.replace("<think> t", "before <think> t") + " after",
        SEARCHED.replace("<think> u", "<search> r </search> <result> e </result> <think> u"),
    ],
)
def test_right(text):
    assert research_format(text) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no <think>"),
        (SEARCHED.replace("think>", "thought>"), "no <think>"),
        (SEARCHED.replace("u </think>", "u"), "not in pairs"),
        (SEARCHED + "<answer> \\boxed{y} </answer>", "not exactly one <answer>"),
        (SEARCHED.replace("</answer>", ""), "not exactly one <answer>"),
        (SEARCHED.replace(" <result>\nd\n</result>", ""), "and then a <result>"),
        (SEARCHED.replace("</search>", ""), "no </search>"),
        (SEARCHED.replace("</result>", ""), "no </result>"),
        (
            SEARCHED.replace("</search> <result>\nd\n</result>", "<result> d </result> </search>"),
            "no </search> and then a <result>",
        ),
        (SEARCHED.replace("\\boxed{x}", "x"), "no \\boxed{...}"),
        (SEARCHED.replace("\\boxed{x}", "\\boxed{x"), "no \\boxed{...}"),
        ("<think></think></answer><answer> \\boxed{x}", "no \\boxed{...}"),
    ],
)
def test_wrong(text, says):
    problem = research_format(text)
    assert problem is not None and says in problem


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> \\boxed{ Barack Obama } </answer>", "Barack Obama"),
        ("<answer>\\boxed{a} or \\boxed{b}</answer>", "b"),
        ("<answer>\\boxed{\\frac{1}{2}}</answer>", "\\frac{1}{2}"),
        ("\\boxed{before} <answer>none</answer>", None),
        ("<answer>\\boxed{open", None),
        ("<answer>\\boxed{never shut</answer>", None),
        ("no tags \\boxed{x}", None),
        ("<answer>\\boxed{}</answer>", ""),
    ],
)
def test_boxed_answer(text, answer):
    assert boxed_answer(text) == answer
