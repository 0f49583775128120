"""Labels of answer pairs by a judge: reading pairs, labelling them, and agreement metrics."""

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
    """Settings of a judge's question about a pair."""

    by: Literal["pair", "grade"]
    """ "pair": which answer is better, asked in both orders. "grade": a grade of each answer
    alone."""
    criteria: str
    """Criteria of a good answer."""
    scale: int
    """The best grade; 1 is the worst."""


@dataclass(frozen=True, slots=True)
class Label:
    """A judge's label of a pair."""

    probability: float
    """Probability that the first answer is better."""
    details: Mapping[str, float]
    """The numbers from which the probability was computed, by name."""


def read_pairs(path: str) -> list[dict[str, Any]]:
    """The rows of a file of answer pairs, with all of their keys.

    Raises:
        UsageError: the file does not exist, has no pair, or has a line that is not a pair.
    """
    try:
        rows = read_lines(path, _pair, FORMAT)
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not rows:
        raise UsageError(f"data ({path}) has no pair: give a file with one pair per line")
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
        ToolFailure: the judge gives no verdict.
    """
    request, first, second = (_shown(row[key]) for key in ("prompt", "chosen", "rejected"))
    if question.by == "pair":
        preference = await prefer(chooser, request, (first, second), question.criteria)
        details = {"consistent": float(preference.consistent), "place_bias": preference.bias}
        return Label(preference.probability, details)
    both = [
        await grades(chooser, request, answer, question.criteria, question.scale)
        for answer in (first, second)
    ]
    chosen, rejected = (expected_grade(grade) for grade in both)
    return Label(ahead(*both), {"chosen_grade": chosen, "rejected_grade": rejected})


def _shown(answer: Any) -> Any:
    """The part of a prompt or an answer that the judge reads: a text, or messages."""
    if isinstance(answer, str):
        return answer
    check_roles(answer)
    known = ("role", "content", "tool_calls")
    messages = [{key: m[key] for key in known if key in m} for m in answer]
    return messages[0]["content"] if len(messages) == 1 else messages


def labelled(row: Mapping[str, Any], label: Label) -> dict[str, Any]:
    """The pair with its label. The answer that the judge prefers becomes ``chosen``."""
    line = {**row, **{k: v for k, v in label.details.items() if k.endswith("_grade")}}
    if label.probability < 0.5:
        for key in ("", "_reward", "_grade"):
            pair = f"chosen{key}", f"rejected{key}"
            if all(name in line for name in pair):
                line[pair[0]], line[pair[1]] = line[pair[1]], line[pair[0]]
    return {**line, "label": max(label.probability, 1 - label.probability)}


def summary(judged: Sequence[tuple[Mapping[str, Any], Label]]) -> dict[str, float]:
    """Metrics of a judge: confidence, position bias, and agreement with known rewards."""
    from rl.run.metrics.intervals import pass_rate

    metrics: dict[str, float] = {
        "confidence": fmean(max(label.probability, 1 - label.probability) for _, label in judged)
    }
    for name in ("consistent", "place_bias"):
        if all(name in label.details for _, label in judged):
            metrics[name] = fmean(label.details[name] for _, label in judged)
    agreements = [a for row, label in judged if (a := _agreement(row, label)) is not None]
    metrics["verifiable"] = len(agreements)
    if agreements:
        rate = pass_rate(agreements)
        metrics |= {"agreement": rate.rate, "agreement_low": rate.low, "agreement_high": rate.high}
    return metrics


def _agreement(row: Mapping[str, Any], label: Label) -> float | None:
    """1 if the judge prefers the answer with the higher reward, 0.5 for a tie, else 0.

    None if the rewards are equal or missing.
    """
    if not {"chosen_reward", "rejected_reward"} <= row.keys():
        return None
    lead = row["chosen_reward"] - row["rejected_reward"]
    if lead == 0:
        return None
    if label.probability == 0.5:
        return 0.5
    return float((label.probability > 0.5) == (lead > 0))
