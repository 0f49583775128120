"""``python -m rl.judge data=pairs.jsonl model=FOLDER``: preferences labelled by a model (RLAIF).

Each pair of answers gets the probability that its first is the better one, as a judge sees it. The
judge is a model in this process, or, with ``url``, a chat model behind an OpenAI-compatible API.
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
from rl.judging.labels import Label, Question, label_pair, labelled, read_pairs, summary
from rl.run.files import claimed_folder, replace_text
from rl.run.process.command import answer, report, run_command
from rl.settings.chat import OWN_TEMPLATE, ChatConfig
from rl.settings.groups import at_least
from rl.settings.parsing.from_python import from_python
from rl.settings.parsing.left_out import left_out
from rl.settings.run import ModelConfig, run_path
from tools.limits import CallLimits
from tools.tool import ToolFailure

JUDGED, RESULT = "pairs.jsonl", "result.json"
"""What stands in the folder."""
MOST_FAILED = 0.25
"""The largest share of pairs that may go without a judgement."""
_TOLD_EVERY = 200


@from_python
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
    chat: ChatConfig = field(default_factory=left_out)
    """How messages become the judge's prompt; not with url, whose server has its own template."""
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

    @property
    def loads_model(self) -> bool:
        """Whether the judge runs here."""
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
            raise ValueError(f"key ({self.key}) is no environment variable here")
        self.limits()

    def limits(self) -> CallLimits:
        """Of one request."""
        return CallLimits(timeout_s=self.timeout_s, retries=self.retries)


async def judge(config: JudgeConfig) -> dict[str, object]:
    """Label the pairs and write them, the preferred answer as ``chosen``.

    Returns:
        Where they are, how many, how sure the judge is, what places do to it, and how often it
        agrees with the rewards of pairs that have them.

    Raises:
        UsageError: the data, the model or the folder is not what the settings say.
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

    from rl.judging.local import load_judge
    from rl.runtime.model import device_of, dtype_of

    torch.set_num_threads(config.num_threads)
    try:
        chooser = load_judge(config.model, device_of(config), dtype_of(config), config.chat)
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
    question = Question(config.by, config.criteria, config.scale)
    places, done = asyncio.Semaphore(config.concurrent), 0
    failures: list[ToolFailure] = []

    async def one(row: Mapping[str, Any]) -> Label | None:
        nonlocal done
        async with places:
            if len(failures) > MOST_FAILED * len(rows):
                return None  # It is over: nobody is asked any more.
            try:
                label = await label_pair(chooser, row, question)
            except ToolFailure as failure:
                failures.append(failure)
                return None
        done += 1
        if done % _TOLD_EVERY == 0:
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
    """The command line. Returns the exit code."""
    return run_command("rl.judge", JudgeConfig, {}, _run, argv)


def _run(config: JudgeConfig) -> int:
    return answer(asyncio.run(judge(config)))


if __name__ == "__main__":
    sys.exit(main())
