"""The facts of a model card, read from the folder of a run."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl.api.results import Run, read_run
from rl.reports.differences import RecordedRun, read_recorded
from rl.run.folder import versions
from rl.run.metrics.intervals import PassRate

ADAPTER = "adapter_config.json"
CURVE = "curve.png"
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")


AFTER = "after training"


@dataclass(frozen=True)
class Measured:
    """A score that a run measured on data that it did not train on."""

    when: str
    """"before training" or :data:`AFTER`."""
    score: str
    data: str
    rate: PassRate


@dataclass(frozen=True)
class CardFacts:
    """What a model card states about a trained model."""

    recorded: RecordedRun
    run: Run
    versions: Mapping[str, Any]
    """As in versions.json of the run; those of this process if the run has none."""
    is_adapter: bool
    is_classifier: bool
    """Whether the model is a reward model with one output."""
    has_curve: bool
    """Whether the model's folder has the picture of the curve."""
    validation: tuple[int, float] | None
    """Step and success of the best validation, or None if nothing was validated."""
    measured: tuple[Measured, ...]

    @property
    def base_model(self) -> str:
        """The model that was trained, as the settings name it."""
        return self.recorded.settings.get("model", "unknown")

    @property
    def algorithm(self) -> str:
        """The algorithm's name, or that of the command without an algorithm."""
        return self.recorded.settings.get("algo", self.recorded.command.removeprefix("rl."))

    @property
    def env(self) -> str:
        """The environment's id, or "" for commands without environment."""
        return self.recorded.settings.get("env", "")

    @property
    def data(self) -> str:
        """The data set of the environment or of the command, or "" for generated tasks."""
        settings = self.recorded.settings
        tasks = settings.get("env.tasks", "")
        # Other names, such as "world", are generated tasks.
        return settings.get("data") or (tasks if "/" in tasks or "." in tasks else "")


def read_facts(model: Path, folder: Path, result: Mapping[str, Any]) -> CardFacts:
    """The facts about the checkpoint ``model`` of the run in ``folder``.

    Args:
        model: the checkpoint.
        folder: the run's folder.
        result: numbers that the command reported and wrote to no file of the run.

    Raises:
        UsageError: the folder holds no run.
    """
    run, recorded = read_run(folder), read_recorded(folder)
    file = folder / "versions.json"
    return CardFacts(
        recorded=recorded,
        run=run,
        versions=json.loads(file.read_text(encoding="utf-8")) if file.is_file() else versions(),
        is_adapter=(model / ADAPTER).is_file(),
        is_classifier=_is_classifier(model),
        has_curve=(model / CURVE).is_file(),
        validation=_best_validation(run),
        measured=(*_tests(run), *_accuracy(result)),
    )


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of a Hugging Face id and is no folder or file here."""
    return bool(_HUB_ID.fullmatch(name)) and not Path(name).exists()


def _tests(run: Run) -> Iterator[Measured]:
    """Success on test tasks before and after training, from metrics.jsonl."""
    score = str(run.result.get("score", "success"))
    keys = ("test/success", "test/success_low", "test/success_high", "test/tasks")
    tests = [record for record in run.history if "test/success" in record]
    for record in [r for r in tests if r["step"] == 0][:1] + [r for r in tests if r["step"]][-1:]:
        when = AFTER if record["step"] else "before training"
        yield Measured(when, score, "test tasks", PassRate(*(record[key] for key in keys)))


def _accuracy(result: Mapping[str, Any]) -> Iterator[Measured]:
    """The accuracy on held-out pairs or steps, from the result of a command."""
    for kind in ("pairs", "steps"):
        if f"held_out_{kind}" in result:
            keys = ("accuracy", "accuracy_low", "accuracy_high", f"held_out_{kind}")
            rate = PassRate(*(result[key] for key in keys))
            yield Measured(AFTER, "accuracy", f"held-out {kind}", rate)


def _best_validation(run: Run) -> tuple[int, float] | None:
    """The first validation with the highest success."""
    found = [(r["step"], r["eval/success"]) for r in run.history if "eval/success" in r]
    return max(found, key=lambda one: one[1], default=None)


def _is_classifier(model: Path) -> bool:
    file = model / "config.json"
    if not file.is_file():
        return False
    names = json.loads(file.read_text(encoding="utf-8")).get("architectures") or [""]
    return str(names[0]).endswith("ForSequenceClassification")
