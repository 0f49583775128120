"""``python -m rl.step_labels env=math data=FILE model=FOLDER``: labels solution steps by trial.

These are Math-Shepherd's labels (arXiv 2312.08935, section 3.3). A model completes the solution
several times from each step, and the right answers among the completions determine the step's
label. ``rl.reward_model process=true`` reads the labels. A stopped command resumes.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from rl.errors import UsageError
from rl.files import discard_if_refused, make_folder, replace_text, writing
from rl.run.process.command import answer, report, run_command
from rl.run.splits import check_splits
from rl.settings.environment import ENV, EnvChoice
from rl.settings.groups import at_least
from rl.settings.parsing.command_line import Implies
from rl.settings.parsing.from_python import from_python
from rl.settings.parsing.left_out import left_out
from rl.settings.parsing.plain import to_plain
from rl.settings.run import RunConfig, run_path

LABELLED, RESULT, CONFIG = "steps.jsonl", "result.json", "config.json"
"""Names of the files in the folder."""
MAY_CHANGE = (
    *("out", "at_once", "threads", "device", "cluster", "close_s", "episode_timeout_s"),
    "dry_run",
)
"""Settings that may change when a stopped command resumes."""


@from_python
@dataclass(frozen=True, kw_only=True)
class StepLabelsConfig(RunConfig, Implies):
    """Label each step of a solution by the right answers that follow from it."""

    env: EnvChoice = field(default_factory=left_out, metadata={"choice": ENV})
    """Must be math. Its verifier checks answers, and env.reward defines where an answer stands."""
    model: str
    """The model that completes solutions: a Hugging Face id or folder."""
    data: str
    """A file of JSON lines {"prompt": a text or messages, "completions": [step, ...], "answer":
    ...}."""
    rollouts: int = 8
    """Number of completions from each step."""
    estimate: Literal["soft", "hard"] = "soft"
    """soft: the share of right answers. hard: 1 if any answer is right."""
    at_once: int = 8
    """Number of solutions that are labelled at the same time."""
    out: str = "runs/steps-{seed}"
    """The output folder. A command with the same settings resumes an unfinished file in it."""

    @classmethod
    def implied(cls, given: Mapping[str, Any]) -> Mapping[str, str]:
        """The only environment."""
        return {"env": "math"}

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, self, "rollouts", "at_once")
        if self.env.env_id != "math-v0":
            raise ValueError(
                f"env ({self.env.env_id}) must be math, whose verifier judges the answers: "
                "give env=math"
            )
        if self.deterministic:
            raise ValueError(
                "deterministic (True) must be False: each continuation has its own seed"
            )


async def label(config: StepLabelsConfig) -> dict[str, object]:
    """Label the solutions that have no labels yet.

    Returns:
        The path of the labels; numbers of solutions, of steps, and of solutions labelled by this
        call; the mean label.

    Raises:
        UsageError: the data, the model or the folder cannot be used with these settings.
        PolicyFailure: the policy failed.
        RunFailure: an answer cannot be verified, or a file cannot be written.
    """
    check_splits(config)
    # Imports torch: a wrong setting is reported before that.
    from rl.data.steps import read_solutions
    from rl.preferences.step_labels import StepRollouts
    from rl.runtime.runtime import open_runtime

    folder = run_path(config.out, config)
    try:
        solutions = read_solutions(config.data)
    except ValueError as error:
        raise UsageError(str(error)) from error
    make_folder(folder)
    done = _done(folder, config)
    missing = [n for n in range(len(solutions)) if n not in done]
    if missing:
        async with open_runtime(config, report, folder / "logs") as runtime:
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
    """The rows that an earlier command labelled. Also records the settings of this command.

    Raises:
        UsageError: the earlier command had other settings.
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
    # A killed command may leave an incomplete last line.
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
    """Run the command line and return the exit code."""
    return run_command("rl.step_labels", StepLabelsConfig, {}, _run, argv)


def _run(config: StepLabelsConfig) -> int:
    with discard_if_refused(run_path(config.out, config)):
        result = asyncio.run(label(config))
    return answer(result)


if __name__ == "__main__":
    sys.exit(main())
