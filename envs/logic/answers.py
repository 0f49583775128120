"""Extracts the answer from an action."""

from __future__ import annotations

OPENS, CLOSES = "<answer>", "</answer>"


def only_answer(text: str) -> str | None:
    """The stripped text between the only ``<answer>`` and the only ``</answer>``.

    Returns None if a tag is missing or repeated, or if the tags are in the wrong order.
    """
    if text.count(OPENS) != 1 or text.count(CLOSES) != 1:
        return None
    _, _, rest = text.partition(OPENS)
    answer, closed, _ = rest.partition(CLOSES)
    return answer.strip() if closed else None
