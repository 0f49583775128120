"""Think and answer tags: open-r1's values, and texts that only look like them."""

from __future__ import annotations

import pytest

from envs.rewards.thinking import tag_count, think_answer_format, thoughts

GOOD = "<think>\nTwo and two.\n</think>\n<answer>\n4\n</answer>"


@pytest.mark.parametrize(
    ("text", "whole", "tags"),
    [
        (GOOD, 1.0, 1.0),
        ("<think>\n思考 é\n\nmore\n</think>\n<answer>\n四\n</answer>", 1.0, 1.0),
        ("", 0.0, 0.0),
        ("4", 0.0, 0.0),
        (f"{GOOD}\n", 0.0, 1.0),
        (f"{GOOD}\nAnd more.", 0.0, 1.0),
        (f"Well: {GOOD}", 0.0, 1.0),
        (f"{GOOD}\n{GOOD}", 0.0, 0.0),
        (GOOD.replace("\n", ""), 0.0, 0.0),
        (GOOD.replace("<answer>\n4", "<answer>4"), 0.0, 0.75),
        (GOOD.replace("</think>", ""), 0.0, 0.75),
        (GOOD.replace("Two", "<think>\nTwo\n</think>\n"), 0.0, 0.5),
        (GOOD.replace("<think>", "<THINK>"), 0.0, 0.75),
        ("\n</answer>\n<answer>\n</think>\n<think>\n", 0.0, 1.0),
        ("<think>\n" * 50 + "\n</answer>" * 50, 0.0, 0.0),
    ],
)
def test_format_and_tag_count(text, whole, tags):
    assert think_answer_format(text) == whole
    assert tag_count(text) == tags


@pytest.mark.parametrize(
    ("text", "thought"),
    [
        (GOOD, "\nTwo and two.\n"),
        ("<think>a</think> b <think>c</think>", "a\nc"),
        ("<think>never ends", "<think>never ends"),
        ("", ""),
    ],
)
def test_thoughts(text, thought):
    assert thoughts(text) == thought
