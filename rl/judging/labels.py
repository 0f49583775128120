"""A judge's word on pairs of answers: the pairs it reads, its labels, and how they agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Literal

from envs.judges.chooser import Chooser
from envs.judges.verdicts import ahead, expected_grade, grades, prefer
from rl.data.json_lines import read_lines
from rl.data.roles import check_roles
from rl.errors import UsageError

FORMAT = '{"prompt": ..., "chosen": ..., "rejected": ...}, each a text or a list of messages'


@dataclass(frozen=True, slots=True)
class Question:
    """What a judge is asked about a pair."""

    by: Literal["pair", "grade"]
    """pair: which is better, in both orders; grade: how good each is by itself."""
    criteria: str
    """What makes an answer good."""
    scale: int
    """The best grade; 1 is the worst."""


@dataclass(frozen=True, slots=True)
class Label:
    """A judge's word on a pair."""

    probability: float
    """That the first is the better one."""
    told: Mapping[str, float]
    """What that was made of, by name."""


def read_pairs(path: str) -> list[dict[str, Any]]:
    """Pairs of answers as their file has them, whatever else a line holds.

    Raises:
        UsageError: there is no such file, it holds none, or a line is no pair.
    """
    try:
        rows = read_lines(path, _pair, FORMAT)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not rows:
        raise UsageError(f"data ({path}) holds no pair: give it a line for each")
    return rows


def _pair(row: dict[str, Any]) -> dict[str, Any]:
    for key in ("prompt", "chosen", "rejected"):
        if not _shown(row[key]):
            raise ValueError(f"{key} is empty")
    known = [row[key] for key in ("chosen_reward", "rejected_reward") if key in row]
    if not all(math.isfinite(reward) for reward in known):
        raise ValueError("a reward is not finite")
    return row


async def label_pair(chooser: Chooser, row: Mapping[str, Any], question: Question) -> Label:
    """Ask a judge about a pair.

    Raises:
        ToolFailure: it gives no verdict.
    """
    request, first, second = (_shown(row[key]) for key in ("prompt", "chosen", "rejected"))
    if question.by == "pair":
        preference = await prefer(chooser, request, (first, second), question.criteria)
        told = {"consistent": float(preference.consistent), "place_bias": preference.bias}
        return Label(preference.probability, told)
    both = [
        await grades(chooser, request, answer, question.criteria, question.scale)
        for answer in (first, second)
    ]
    told = {"chosen_grade": expected_grade(both[0]), "rejected_grade": expected_grade(both[1])}
    return Label(ahead(*both), told)


def _shown(said: Any) -> Any:
    """What the judge reads of a prompt or an answer: a text, or who said what."""
    if isinstance(said, str):
        return said
    check_roles(said)
    known = ("role", "content", "tool_calls")
    messages = [{key: m[key] for key in known if key in m} for m in said]
    return messages[0]["content"] if len(messages) == 1 else messages


def labelled(row: Mapping[str, Any], label: Label) -> dict[str, Any]:
    """The pair with the answer first that the judge prefers."""
    line = {**row, **{k: v for k, v in label.told.items() if k.endswith("_grade")}}
    if label.probability < 0.5:
        for key in ("", "_reward", "_grade"):
            pair = f"chosen{key}", f"rejected{key}"
            if all(name in line for name in pair):
                line[pair[0]], line[pair[1]] = line[pair[1]], line[pair[0]]
    return {**line, "label": max(label.probability, 1 - label.probability)}


def summary(judged: Sequence[tuple[Mapping[str, Any], Label]]) -> dict[str, float]:
    """How sure the judge is, what places do to it, and how often it agrees with known rewards."""
    from rl.run.metrics.intervals import pass_rate

    told: dict[str, float] = {
        "confidence": fmean(max(label.probability, 1 - label.probability) for _, label in judged)
    }
    for name in ("consistent", "place_bias"):
        if all(name in label.told for _, label in judged):
            told[name] = fmean(label.told[name] for _, label in judged)
    agreements = [a for row, label in judged if (a := _agreement(row, label)) is not None]
    told["verifiable"] = len(agreements)
    if agreements:
        rate = pass_rate(agreements)
        told |= {"agreement": rate.rate, "agreement_low": rate.low, "agreement_high": rate.high}
    return told


def _agreement(row: Mapping[str, Any], label: Label) -> float | None:
    """1 where the judge prefers what earned more, 0.5 for a tie of its; None: nobody knows."""
    if not {"chosen_reward", "rejected_reward"} <= row.keys():
        return None
    lead = row["chosen_reward"] - row["rejected_reward"]
    if lead == 0:
        return None
    if label.probability == 0.5:
        return 0.5
    return float((label.probability > 0.5) == (lead > 0))
