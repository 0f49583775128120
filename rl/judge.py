"""``python -m rl.judge data=pairs.jsonl model=FOLDER``: preferences labelled by a model (RLAIF).

Each pair of answers gets the probability that its first is the better one, as a judge sees it. The
judge is a model in this process, or, with ``url``, a chat model behind an OpenAI-compatible API.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from envs.judges.chooser import Chooser
from envs.judges.verdicts import CRITERIA, ahead, expected_grade, grades, prefer
from rl.command import run_command
from rl.config import ModelConfig, at_least, run_path
from rl.errors import RunFailure, UsageError
from tools.limits import CallLimits
from tools.tool import ToolFailure

JUDGED, RESULT = "pairs.jsonl", "result.json"
"""What stands in the folder."""
MOST_FAILED = 0.25
"""The largest share of pairs that may go without a judgement."""
_TOLD_EVERY = 200


@dataclass(frozen=True, kw_only=True)
class JudgeConfig(ModelConfig):
    """Label pairs of answers by the word of a model."""

    model: str
    """The judge: a Hugging Face id or folder; with url, its name there."""
    data: str
    """JSON lines of {"prompt": ..., "chosen": ..., "rejected": ...}, each a text or messages."""
    by: Literal["pair", "grade"] = "pair"
    """pair: the judge reads both answers, in both orders; grade: it grades each by itself."""
    criteria: str = CRITERIA
    """What makes an answer good, in words that the judge reads."""
    scale: int = 10
    """by=grade: the best grade; 1 is the worst."""
    url: str = ""
    """An OpenAI-compatible API, http://host:port/v1; empty: the model runs here."""
    key: str = ""
    """The environment variable that holds the URL's key; empty: none."""
    timeout_s: float = 60.0
    """Seconds of one request."""
    retries: int = 3
    """Further requests after one that failed in a way that may pass."""
    concurrent: int = 32
    """Pairs that are judged at once."""
    out: str = "runs/judge-{seed}"
    """The folder; no file in it is overwritten."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "concurrent")
        at_least(2, self, "scale")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url ({self.url}) must begin with http://")
        if self.key and self.key not in os.environ:
            raise ValueError(f"key ({self.key}) is no environment variable here")
        self.limits()

    def limits(self) -> CallLimits:
        """Of one request."""
        return CallLimits(timeout_s=self.timeout_s, retries=self.retries)


@dataclass(frozen=True, slots=True)
class Label:
    """A judge's word on a pair."""

    probability: float
    """That the first is the better one."""
    told: Mapping[str, float]
    """What that was made of, by name."""


async def judge(config: JudgeConfig) -> dict[str, object]:
    """Label the pairs and write them, the preferred answer as ``chosen``.

    Returns:
        Where they are, how many, how sure the judge is, what places do to it, and how often it
        agrees with the rewards of pairs that have them.

    Raises:
        UsageError: the data, the model or the folder is not what the settings say.
        RunFailure: too many pairs got no judgement, or a file cannot be written.
    """
    from rl.run.files import claim_folder, replace_text

    folder = run_path(config.out, config)
    rows = _read(config.data)
    claim_folder(folder, (JUDGED, RESULT))
    async with _open(config) as chooser:
        labels = await _labels(config, chooser, rows)
    judged = [(row, label) for row, label in zip(rows, labels, strict=True) if label is not None]
    result: dict[str, object] = {"judged": str(folder / JUDGED), "pairs": len(judged)}
    result |= {"failures": len(rows) - len(judged), **_summary(judged)}
    lines = (json.dumps(_labelled(row, label)) + "\n" for row, label in judged)
    replace_text(folder / JUDGED, "".join(lines))
    replace_text(folder / RESULT, json.dumps(result, indent=2) + "\n")
    return result


@asynccontextmanager
async def _open(config: JudgeConfig) -> AsyncIterator[Chooser]:
    """The judge."""
    if config.url:
        from envs.judges.endpoint import ChatEndpoint, EndpointChooser

        key = os.environ[config.key] if config.key else ""
        async with ChatEndpoint(
            config.url, config.model, key=key, limits=config.limits()
        ) as endpoint:
            yield EndpointChooser(endpoint)
        return
    import torch

    from rl.local_judge import load_judge
    from rl.stage import device_of, dtype_of

    torch.set_num_threads(config.threads)
    try:
        chooser = load_judge(config.model, device_of(config), dtype_of(config))
    except ValueError as error:
        raise UsageError(str(error)) from error
    yield chooser


async def _labels(
    config: JudgeConfig, chooser: Chooser, rows: Sequence[Mapping[str, Any]]
) -> list[Label | None]:
    """A label for each pair; None where the judge gives none.

    Raises:
        RunFailure: it gives none for too many.
    """
    places, done = asyncio.Semaphore(config.concurrent), 0
    failures: list[ToolFailure] = []

    async def one(row: Mapping[str, Any]) -> Label | None:
        nonlocal done
        async with places:
            if len(failures) > MOST_FAILED * len(rows):
                return None  # It is over: nobody is asked any more.
            try:
                label = await _label(config, chooser, row)
            except ToolFailure as failure:
                failures.append(failure)
                return None
        done += 1
        if done % _TOLD_EVERY == 0:
            sys.stderr.write(f"judged {done}/{len(rows)}\n")
        return label

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(row)) for row in rows]
    if len(failures) > MOST_FAILED * len(rows):
        raise RunFailure(
            f"the judge gave no verdict on {len(failures)} of {len(rows)} pairs: {failures[0]}"
        )
    return [task.result() for task in tasks]


async def _label(config: JudgeConfig, chooser: Chooser, row: Mapping[str, Any]) -> Label:
    request, first, second = (_shown(row[key]) for key in ("prompt", "chosen", "rejected"))
    if config.by == "pair":
        preference = await prefer(chooser, request, (first, second), config.criteria)
        told = {"consistent": float(preference.consistent), "place_bias": preference.bias}
        return Label(preference.probability, told)
    both = [
        await grades(chooser, request, answer, config.criteria, config.scale)
        for answer in (first, second)
    ]
    told = {"chosen_grade": expected_grade(both[0]), "rejected_grade": expected_grade(both[1])}
    return Label(ahead(*both), told)


def _shown(said: Any) -> Any:
    """What the judge reads of a prompt or an answer: a text, or who said what."""
    if isinstance(said, str):
        return said
    messages = [{"role": m["role"], "content": m["content"]} for m in said]
    return messages[0]["content"] if len(messages) == 1 else messages


def _labelled(row: Mapping[str, Any], label: Label) -> dict[str, Any]:
    """The pair with the answer first that the judge prefers."""
    line = {**row, **{k: v for k, v in label.told.items() if k.endswith("_grade")}}
    if label.probability < 0.5:
        for key in ("", "_reward", "_grade"):
            pair = f"chosen{key}", f"rejected{key}"
            if all(name in line for name in pair):
                line[pair[0]], line[pair[1]] = line[pair[1]], line[pair[0]]
    return {**line, "label": max(label.probability, 1 - label.probability)}


def _summary(judged: Sequence[tuple[Mapping[str, Any], Label]]) -> dict[str, float]:
    from rl.run.metrics import pass_rate

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


def _read(path: str) -> list[dict[str, Any]]:
    file = Path(path).expanduser()
    form = '{"prompt": ..., "chosen": ..., "rejected": ...}, each a text or a list of messages'
    if not file.is_file():
        raise UsageError(f"data ({path}) must be a file of JSON lines, {form}")
    rows: list[dict[str, Any]] = []
    # Lines end in a line feed: str.splitlines would also cut at the separators inside texts.
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
            for key in ("prompt", "chosen", "rejected"):
                if not _shown(row[key]):
                    raise ValueError(f"{key} is empty")
            known = [row[key] for key in ("chosen_reward", "rejected_reward") if key in row]
            if not all(math.isfinite(reward) for reward in known):
                raise ValueError("a reward is not finite")
        except (LookupError, TypeError, ValueError) as error:
            raise UsageError(f"{path}, line {number}: expected {form} ({error})") from error
        rows.append(row)
    if not rows:
        raise UsageError(f"data ({path}) holds no pair: give it a line for each")
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    return run_command("rl.judge", JudgeConfig, {}, _run, argv)


def _run(config: JudgeConfig) -> int:
    sys.stdout.write(json.dumps(asyncio.run(judge(config))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
