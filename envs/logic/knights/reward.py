"""Logic-RL's reward: the format of a response, then who it says is what.

Xie et al., "Logic-RL: Unleashing LLM Reasoning with Rule-Based Reinforcement Learning"
(arXiv:2502.14768), section 3; what the paper leaves open follows the authors' code.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

TAGS = ("<think>", "</think>", "<answer>", "</answer>")
"""Each exactly once, in this order."""
FORMAT_RIGHT, FORMAT_WRONG = 1.0, -1.0
ANSWER_RIGHT, ANSWER_WRONG, ANSWER_MISSING = 2.0, -1.5, -2.0
HEADERS = ("Assistant:", "<|im_start|>assistant")
"""What an assistant's response stands behind in a transcript."""

_CLAIM = r"\b{}\s+is\s+a\s+(knight|knave)\b"
"""Of a name. Letters and white space are those of Unicode, as in the authors' code."""


def right_format(response: str) -> bool:
    """Whether every tag stands there exactly once, in order. Text outside of them is allowed."""
    last = -1
    for tag in TAGS:
        at = response.find(tag)
        if at <= last or response.find(tag, at + 1) >= 0:
            return False
        last = at
    return True


def claimed(answer: str, names: Collection[str]) -> dict[str, str] | None:
    """Who is what by an answer; None where it does not parse.

    The words "knight" and "knave" stand in it exactly once per person, and each person is in a
    "NAME is a knight" or "NAME is a knave", in capitals or not.
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
    """Rewards of a response, as "format" and "answer"; together 3, -0.5, -1 or -3.

    Args:
        response: what the agent said, tags and all.
        roles: who is what, "knight" or "knave" by name.
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
    """As :func:`logic_rl_reward`, of a whole transcript: the prompt and what follows the header.

    The response is what stands behind the first of :data:`HEADERS`. In a transcript without one
    the format may be right, but there is no answer.
    """
    for header in HEADERS:
        _, found, response = transcript.partition(header)
        if found:
            return logic_rl_reward(response, roles)
    right = FORMAT_RIGHT if right_format(transcript) else FORMAT_WRONG
    return {"format": right, "answer": ANSWER_MISSING}
