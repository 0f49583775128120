"""Formats with think and answer tags."""

from __future__ import annotations

import re

_TAGS = ("<think>", "</think>", "<answer>", "</answer>")
_WHOLE = re.compile(r"<think>\n.*\n</think>\n<answer>\n.*\n</answer>", re.DOTALL)
_COUNTED = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)


def think_answer_format(text: str) -> float:
    r"""1.0 for a text that consists of a thought and an answer, both in tags; otherwise 0.0.

    DeepSeek-R1-Zero's format reward (arXiv:2501.12948, section 2.2.2) as open-r1 writes it:
    ``<think>\n...\n</think>\n<answer>\n...\n</answer>``. Its regular expression also takes texts
    whose tags are nested or repeated, and what follows the last one on a line of its own; here
    each tag stands exactly once, and the text ends with the last.
    """
    once = all(text.count(tag) == 1 for tag in _TAGS)
    return float(once and _WHOLE.fullmatch(text) is not None)


def tag_count(text: str) -> float:
    """A quarter for each of the four tags that occurs exactly once, with its line breaks.

    open-r1's ``tag_count_reward``: the order does not matter, and tags alone earn all of it.
    """
    return sum(text.count(tag) == 1 for tag in _COUNTED) / len(_COUNTED)


def one_think_end(text: str) -> float:
    r"""1.0 if ``\n</think>\n`` occurs exactly once in the text, otherwise 0.0: open-rs's format."""
    return float(text.count("\n</think>\n") == 1)


def thoughts(text: str) -> str:
    """The contents of all think elements; if there are none, the whole text."""
    found = _THOUGHT.findall(text)
    return "\n".join(found) if found else text
