"""``python -m rl.judge data=pairs.jsonl model=FOLDER``: preferences labelled by a model (RLAIF).

A judge labels each pair of answers with the probability that the first answer is better. The judge
is a model in this process or, with ``url``, a chat model behind an OpenAI-compatible API.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from envs.judges.chooser import Chooser
from envs.judges.verdicts import CRITERIA
from rl.errors import RunFailure, UsageError
from rl.files import claimed_folder, replace_text
from rl.preferences.judge_labels import Label, Question, label_pair, labelled, read_pairs, summary
from rl.run.process.command import answer, report, run_command
from rl.run.process.cores import report_busy
from rl.settings.chat import OWN_TEMPLATE, ChatConfig
from rl.settings.groups import at_least
from rl.settings.parsing.from_python import from_python
from rl.settings.parsing.left_out import left_out
from rl.settings.run import ModelConfig, run_path
from tools.limits import CallLimits
from tools.tool import ToolFailure

JUDGED, RESULT = "pairs.jsonl", "result.json"
"""Names of the files in the output folder."""
MOST_FAILED = 0.25
"""Maximum share of pairs without a judgement."""
_REPORT_EVERY = 200


@from_python
@dataclass(frozen=True, kw_only=True)
class JudgeConfig(ModelConfig):
    """Label pairs of answers with a judge model."""

    model: str
    """The judge: a Hugging Face id or a folder or, with url, the model's name on the server."""
    data: str
    """A file of JSON lines {"prompt": ..., "chosen": ..., "rejected": ...}; each value is a text
    or messages."""
    by: Literal["pair", "grade"] = "pair"
    """ "pair": the judge compares both answers, in both orders. "grade": it grades each answer
    alone."""
    criteria: str = CRITERIA
    """Criteria of a good answer, in words that the judge reads."""
    scale: int = 10
    """With by=grade: the best grade; 1 is the worst."""
    chat: ChatConfig = field(default_factory=left_out)
    """How messages become the judge's prompt. Not used with url, because the server does this
    itself."""
    url: str = ""
    """URL of an OpenAI-compatible API, http://host:port/v1. If empty, the model runs in this
    process."""
    key: str = ""
    """Name of the environment variable that holds the API's key; empty if the API needs none."""
    timeout_s: float = 60.0
    """Seconds that one request may take."""
    retries: int = 3
    """Maximum number of retries after a temporary failure."""
    concurrent: int = 32
    """Number of pairs that are judged at the same time."""
    out: str = "runs/judge-{seed}"
    """The output folder. Existing files are never overwritten."""

    @property
    def loads_model(self) -> bool:
        """Whether the judge runs in this process."""
        return not self.url

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "concurrent")
        at_least(2, self, "scale")
        if self.url and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url ({self.url}) must begin with http://")
        if self.url and self.chat != OWN_TEMPLATE:
            raise ValueError(f"chat must be left out with url ({self.url}): its server has its own")
        if self.key and self.key not in os.environ:
            raise ValueError(f"key ({self.key}) must be an environment variable that is set")
        self.limits()

    def limits(self) -> CallLimits:
        """The limits of one request."""
        return CallLimits(timeout_s=self.timeout_s, retries=self.retries)


async def judge(config: JudgeConfig) -> dict[str, object]:
    """Label the pairs and write them, with the preferred answer as ``chosen``.

    Returns:
        The file, the number of pairs, the judge's confidence, the effect of the order of answers,
        and the agreement with rewards, if pairs have rewards.

    Raises:
        UsageError: the data, the model or the folder is unusable.
        RunFailure: too many pairs got no judgement, or a file cannot be written.
    """
    folder = run_path(config.out, config)
    rows = read_pairs(config.data)
    with claimed_folder(folder, (JUDGED, RESULT)):
        async with _open(config) as chooser:
            labels = await _labels(config, chooser, rows)
    judged = [(row, label) for row, label in zip(rows, labels, strict=True) if label is not None]
    result: dict[str, object] = {"judged": str(folder / JUDGED), "pairs": len(judged)}
    result |= {"failures": len(rows) - len(judged), **summary(judged)}
    lines = (json.dumps(labelled(row, label)) + "\n" for row, label in judged)
    replace_text(folder / JUDGED, "".join(lines))
    replace_text(folder / RESULT, json.dumps(result, indent=2) + "\n")
    return result


@asynccontextmanager
async def _open(config: JudgeConfig) -> AsyncIterator[Chooser]:
    """Open the judge."""
    if config.url:
        from envs.judges.endpoint import ChatEndpoint, EndpointChooser

        key = os.environ[config.key] if config.key else ""
        async with ChatEndpoint(
            config.url, config.model, key=key, limits=config.limits()
        ) as endpoint:
            yield EndpointChooser(endpoint)
        return
    import torch

    from rl.preferences.judge_model import load_judge
    from rl.runtime.model import device_of, dtype_of

    report_busy(config.num_threads, report)
    torch.set_num_threads(config.num_threads)
    try:
        chooser = load_judge(config.model, device_of(config), dtype_of(config), config.chat)
    except ValueError as error:
        raise UsageError(str(error)) from error
    yield chooser


async def _labels(
    config: JudgeConfig, chooser: Chooser, rows: Sequence[Mapping[str, Any]]
) -> list[Label | None]:
    """The label of each pair, or None for a pair without a judgement.

    Raises:
        RunFailure: too many pairs have no judgement.
    """
    question = Question(config.by, config.criteria, config.scale)
    permits, done = asyncio.Semaphore(config.concurrent), 0
    failures: list[ToolFailure] = []

    async def one(row: Mapping[str, Any]) -> Label | None:
        nonlocal done
        async with permits:
            if len(failures) > MOST_FAILED * len(rows):
                return None  # The command fails anyway: send no further requests.
            try:
                label = await label_pair(chooser, row, question)
            except ToolFailure as failure:
                failures.append(failure)
                return None
        done += 1
        if done % _REPORT_EVERY == 0:
            report(f"judged {done}/{len(rows)}")
        return label

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(row)) for row in rows]
    if len(failures) > MOST_FAILED * len(rows):
        raise RunFailure(
            f"the judge gave no verdict on {len(failures)} of {len(rows)} pairs: {failures[0]}"
        )
    return [task.result() for task in tasks]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command("rl.judge", JudgeConfig, {}, _run, argv)


def _run(config: JudgeConfig) -> int:
    return answer(asyncio.run(judge(config)))


if __name__ == "__main__":
    sys.exit(main())
