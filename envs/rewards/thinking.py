"""Formats with tags for thoughts and answers."""

from __future__ import annotations

import re

from tools.syntax import split_reasoning

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_WHOLE = re.compile(r"<think>\n.*\n</think>\n<answer>\n.*\n</answer>", re.DOTALL)
_COUNTED = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)


def think_answer_format(text: str) -> float:
    r"""1.0 for a text that consists of a thought and an answer, both in tags; otherwise 0.0.

    This is DeepSeek-R1-Zero's format reward (arXiv:2501.12948, section 2.2.2) in open-r1's layout:
    ``<think>\n...\n</think>\n<answer>\n...\n</answer>``. It is stricter than open-r1's regular
    expression, which also accepts nested or repeated tags, and a last line after the answer. Here
    each tag must occur exactly once, and the text must end with the last tag.
    """
    once = all(text.count(tag) == 1 for tag in _TAGS)
    return float(once and _WHOLE.fullmatch(text) is not None)


def tag_count(text: str) -> float:
    """0.25 for each of the four tags that occurs exactly once, with its line breaks.

    This is open-r1's ``tag_count_reward``. The order does not matter, and tags alone earn all of
    it.
    """
    return sum(text.count(tag) == 1 for tag in _COUNTED) / len(_COUNTED)


def one_think_end(text: str) -> float:
    r"""1.0 if ``\n</think>\n`` occurs exactly once, otherwise 0.0: open-rs's format."""
    return float(text.count("\n</think>\n") == 1)


def thoughts(text: str) -> str:
    """The contents of all think elements, or the whole text if there are none."""
    found = _THOUGHT.findall(text)
    return "\n".join(found) if found else text


def without_thoughts(text: str) -> str:
    """The text after and between the thoughts; see ``tools.syntax.split_reasoning``."""
    return split_reasoning(text)[1]
