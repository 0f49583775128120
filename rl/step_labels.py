"""``python -m rl.step_labels env=math data=FILE model=FOLDER``: what each step is worth, by trial.

Math-Shepherd's labels (arXiv 2312.08935, section 3.3): a model goes on from each step of a solution
several times, and a step is as good as the answers that come out. ``rl.reward_model process=true``
reads the file that this writes. A command that was stopped goes on where it was.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rl.errors import UsageError
from rl.run.files import discard_if_refused, make_folder, replace_text, writing
from rl.run.process.command import answer, report, run_command
from rl.run.splits import check_splits
from rl.settings.environment import ENV, EnvChoice
from rl.settings.groups import at_least
from rl.settings.parsing.from_python import from_python
from rl.settings.parsing.left_out import left_out
from rl.settings.parsing.plain import to_plain
from rl.settings.run import RunConfig, run_path

LABELLED, RESULT, CONFIG = "steps.jsonl", "result.json", "config.json"
"""What stands in the folder."""
MAY_CHANGE = ("out", "at_once", "threads", "device", "close_s", "episode_timeout_s", "dry_run")
"""Settings in which a resumed command may differ from the one it goes on from."""


@from_python
@dataclass(frozen=True, kw_only=True)
class StepLabelsConfig(RunConfig):
    """Label the steps of solutions by how often a right answer follows."""

    env: EnvChoice = field(default_factory=left_out, metadata={"choice": ENV})
    """Must be math: its verifier judges answers, and env.reward says where an answer stands."""
    model: str
    """The model that goes on from each step: a Hugging Face id or folder."""
    data: str
    """JSON lines of {"prompt": a text or messages, "completions": [step, ...], "answer": ...}."""
    rollouts: int = 8
    """How often the model goes on from each step."""
    estimate: Literal["soft", "hard"] = "soft"
    """soft: the share of right answers; hard: 1 where any is right."""
    at_once: int = 8
    """Solutions that are labelled at once."""
    out: str = "runs/steps-{seed}"
    """The folder; a command that finds its own unfinished file there goes on with it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "rollouts", "at_once")
        if self.env.env_id != "math-v0":
            raise ValueError(
                f"env ({self.env.env_id}) must be math, whose verifier judges the answers: "
                "say env=math"
            )
        if self.deterministic:
            raise ValueError("deterministic (True) must be False: each completion has its own seed")


async def label(config: StepLabelsConfig) -> dict[str, object]:
    """Label the solutions that have no labels yet.

    Returns:
        Where they are, how many solutions and steps, how many of the file were labelled now, and
        the mean label.

    Raises:
        UsageError: the data, the model or the folder is not what the settings say.
        PolicyFailure: the model cannot go on.
        RunFailure: an answer cannot be verified, or a file cannot be written.
    """
    check_splits(config)
    # These load torch, which a wrong setting of the environment does not wait for.
    from rl.data.steps import read_solutions
    from rl.distillation.step_labels import StepRollouts
    from rl.runtime import open_runtime

    folder = run_path(config.out, config)
    try:
        solutions = read_solutions(config.data)
    except ValueError as error:
        raise UsageError(str(error)) from error
    make_folder(folder)
    done = _done(folder, config)
    missing = [n for n in range(len(solutions)) if n not in done]
    if missing:
        async with open_runtime(config, report) as runtime:
            rollouts = StepRollouts(runtime, config.rollouts, config.estimate, config.seed)
            with writing(folder / LABELLED), (folder / LABELLED).open("a", encoding="utf-8") as out:

                def write(row: dict[str, object]) -> None:
                    out.write(json.dumps(row) + "\n")
                    out.flush()
                    done[int(str(row["row"]))] = row

                rows = {n: solutions[n] for n in missing}
                await rollouts.label_all(rows, config.at_once, write)
    ordered = [done[n] for n in range(len(solutions))]
    replace_text(folder / LABELLED, "".join(json.dumps(row) + "\n" for row in ordered))
    result = {"labelled": str(folder / LABELLED), "solutions": len(solutions)}
    result |= {"labelled_now": len(missing), **_summary(ordered)}
    replace_text(folder / RESULT, json.dumps(result, indent=2) + "\n")
    return result


def _done(folder: Path, config: StepLabelsConfig) -> dict[int, dict[str, object]]:
    """The rows that a command before this one labelled; records what this one is.

    Raises:
        UsageError: that one had other settings.
    """
    plain = to_plain(config)
    settings = {key: value for key, value in plain.items() if key not in MAY_CHANGE}
    settings["data_sha256"] = hashlib.sha256(
        Path(config.data).expanduser().read_bytes()
    ).hexdigest()
    recorded, rows = folder / CONFIG, folder / LABELLED
    if recorded.is_file():
        before = json.loads(recorded.read_text(encoding="utf-8"))
        changed = sorted(key for key in settings if settings[key] != before.get(key))
        if changed:
            raise UsageError(
                f"out ({folder}) holds labels made with another {', '.join(changed)}: choose "
                f"another out=..., or the settings in {recorded}"
            )
    replace_text(recorded, json.dumps(settings, indent=2) + "\n")
    if not rows.is_file():
        return {}
    # What was being written when the command was killed is no whole line.
    lines = rows.read_text(encoding="utf-8").split("\n")[:-1]
    found = [json.loads(line) for line in lines]
    replace_text(rows, "".join(line + "\n" for line in lines))
    return {row["row"]: row for row in found}


def _summary(rows: Sequence[dict[str, object]]) -> dict[str, object]:
    labels = [label for row in rows for label in _labels(row)]
    return {"steps": len(labels), "mean_label": sum(labels) / len(labels)}


def _labels(row: dict[str, object]) -> list[float]:
    labels = row["labels"]
    assert isinstance(labels, list)
    return labels


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code."""
    return run_command("rl.step_labels", StepLabelsConfig, {}, _run, argv)


def _run(config: StepLabelsConfig) -> int:
    with discard_if_refused(run_path(config.out, config)):
        result = asyncio.run(label(config))
    return answer(result)


if __name__ == "__main__":
    sys.exit(main())
