"""The only answer of a text."""

import pytest

from envs.logic.answers import only_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer> 1 + 2 </answer>", "1 + 2"),
        ("<think> so </think> <answer>\n3\n</answer> That is it.", "3"),
        ("<answer></answer>", ""),
        ("", None),
        ("1 + 2", None),
        ("<answer> 1", None),
        ("</answer> 1 <answer>", None),
        ("<answer> 1 </answer> <answer> 2 </answer>", None),
        ("<answer> <answer> 1 </answer>", None),
        ("<Answer> 1 </Answer>", None),
    ],
)
def test_the_only_answer(text, answer):
    assert only_answer(text) == answer
