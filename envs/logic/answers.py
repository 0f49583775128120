"""Where an answer stands in an action."""

from __future__ import annotations

OPENS, CLOSES = "<answer>", "</answer>"


def only_answer(text: str) -> str | None:
    """What stands between the only ``<answer>`` and the only ``</answer>``, stripped.

    None where a tag is missing, stands there twice, or they are the wrong way round.
    """
    if text.count(OPENS) != 1 or text.count(CLOSES) != 1:
        return None
    _, _, rest = text.partition(OPENS)
    answer, closed, _ = rest.partition(CLOSES)
    return answer.strip() if closed else None
