"""Logic-RL's reward: for the format of a response, and for its answer.

Xie et al., "Logic-RL: Unleashing LLM Reasoning with Rule-Based Reinforcement Learning"
(arXiv:2502.14768), section 3. Details that the paper leaves open follow the authors' code.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
"""Tags of a response. Each must occur exactly once, in this order."""
FORMAT_RIGHT, FORMAT_WRONG = 1.0, -1.0
ANSWER_RIGHT, ANSWER_WRONG, ANSWER_MISSING = 2.0, -1.5, -2.0
HEADERS = ("Assistant:", "<|im_start|>assistant")
"""Headers that precede the assistant's response in a transcript."""

_CLAIM = r"\b{}\s+is\s+a\s+(knight|knave)\b"
"""Pattern of a claim about the person in ``{}``. It matches Unicode, as in the authors' code."""


def right_format(response: str) -> bool:
    """Whether every tag occurs exactly once, in order. Text outside of the tags is allowed."""
    last = -1
    for tag in TAGS:
        at = response.find(tag)
        if at <= last or response.find(tag, at + 1) >= 0:
            return False
        last = at
    return True


def claimed(answer: str, names: Collection[str]) -> dict[str, str] | None:
    """The roles that an answer claims, by name, or None if the answer does not parse.

    The answer must contain the words "knight" and "knave" exactly once per person in total, and one
    "NAME is a knight" or "NAME is a knave" per person, in upper or lower case.
    """
    lowered = answer.lower()
    if lowered.count("knight") + lowered.count("knave") != len(names):
        return None
    claims = {}
    for name in names:
        claim = re.search(_CLAIM.format(re.escape(name)), answer, re.IGNORECASE)
        if claim is None:
            return None
        claims[name] = claim[1].lower()
    return claims


def logic_rl_reward(response: str, roles: Mapping[str, str]) -> dict[str, float]:
    """Rewards of a response, named "format" and "answer". Their sum is 3, -0.5, -1 or -3.

    Args:
        response: the agent's text with its tags.
        roles: the solution, "knight" or "knave" by name.
    """
    if not right_format(response):
        return {"format": FORMAT_WRONG, "answer": ANSWER_MISSING}
    answer = response[response.index("<answer>") + len("<answer>") : response.index("</answer>")]
    claims = claimed(answer, roles)
    if claims is None:
        return {"format": FORMAT_RIGHT, "answer": ANSWER_MISSING}
    right = claims == dict(roles)
    return {"format": FORMAT_RIGHT, "answer": ANSWER_RIGHT if right else ANSWER_WRONG}


def transcript_reward(transcript: str, roles: Mapping[str, str]) -> dict[str, float]:
    """Rewards of a whole transcript (prompt, header and response); see :func:`logic_rl_reward`.

    The response follows the first of :data:`HEADERS`. A transcript without a header may have the
    right format, but has no answer.
    """
    for header in HEADERS:
        _, found, response = transcript.partition(header)
        if found:
            return logic_rl_reward(response, roles)
    right = FORMAT_RIGHT if right_format(transcript) else FORMAT_WRONG
    return {"format": right, "answer": ANSWER_MISSING}
