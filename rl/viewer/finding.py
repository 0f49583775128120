"""The findings of a run: what is wrong with it, and the data from which findings are made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rl.rollout.trajectory import Trajectory

Severity = Literal["high", "medium", "low"]
"""high: the run cannot learn as intended. medium: it learns less than it could. low: a remark."""
KEYS = (
    "mask",
    "template",
    "identical",
    "stale_sampler",
    "failures",
    "answers_cut",
    "tied_rewards",
    "no_gradient",
    "no_success",
    "mismatch",
    "worse",
    "apart",
    "entropy",
    "tool_calls",
    "format",
    "held",
)
"""The kinds of findings. Of equal severity, a cause stands before its symptoms."""
EFFECTS = {
    "mask": ("mismatch",),
    "template": ("format",),
    "identical": ("tied_rewards", "no_gradient", "entropy"),
    "stale_sampler": ("mismatch",),
    "answers_cut": ("tied_rewards", "no_gradient", "format"),
    "entropy": ("tied_rewards", "no_gradient"),
}
"""The kinds of findings that each kind explains."""
WINDOW = 10
"""Number of newest steps over which shares are measured."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is wrong with a run."""

    key: str
    """The kind, one of :data:`KEYS`."""
    severity: Severity
    title: str
    """What is wrong, in one sentence with its figure."""
    detail: str
    """What was measured, and what it means."""
    advice: str
    """What to try."""
    steps: tuple[int, ...]
    """The steps concerned."""
    episodes: Mapping[str, str] | tuple[tuple[str, int], ...] = ()
    """The episodes that show it: fields of a query of the list of episodes, such as ``{"kind":
    "train", "step": "3-8", "ending": "failed"}``; or names of files and numbers of lines, such as
    ``("step-000012", 0)``."""
    colour: str = ""
    """Colour of the tokens with which the named episodes open, such as "advantage". If empty, they
    open as a conversation."""
    view: str = ""
    """The view in which the named episodes open, such as "group". If empty, ``colour`` decides."""
    cause: str = ""
    """The kind of the finding that explains this one, or ""."""


@dataclass(frozen=True, slots=True)
class Played:
    """The episodes of a file, and what the learner computed about their tokens."""

    name: str
    """Name of the file without its ending, such as "step-000012"."""
    step: int
    trajectories: Sequence[Trajectory]
    columns: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)
    """A number for each token of the episodes, by name; empty if the run recorded none."""


@dataclass(frozen=True, slots=True)
class ChatFacts:
    """The chat template of a run, and that of its model."""

    replaced: bool
    """Whether the run's template is another one than the model's own."""
    unknown_marks: tuple[str, ...]
    """Marks of the run's template, such as ``<|im_start|>``, that are no tokens of the model."""


@dataclass(frozen=True, slots=True)
class RunData:
    """What findings are made from."""

    records: Sequence[Mapping[str, Any]]
    """The lines of metrics.jsonl."""
    played: Sequence[Played] = ()
    """The episodes of a few training steps."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The run's settings, in the form of config.json."""
    chat: ChatFacts | None = None
    """The chat template. None if it, or that of the model, is not on this machine."""

    @property
    def steps(self) -> list[Mapping[str, Any]]:
        """The records of training steps."""
        return [record for record in self.records if "num_groups" in record]

    @property
    def recent(self) -> list[Mapping[str, Any]]:
        """The records of the newest steps."""
        return self.steps[-WINDOW:]

    @property
    def success(self) -> float | None:
        """The last success on held-out tasks, or None if it was not measured."""
        found = [r[k] for r in self.records for k in ("eval/success", "test/success") if k in r]
        return found[-1] if found else None


def ordered(findings: Sequence[Finding]) -> list[Finding]:
    """The findings, the most important first."""
    severities = ("high", "medium", "low")
    return sorted(findings, key=lambda f: (severities.index(f.severity), KEYS.index(f.key)))


def of_steps(steps: Sequence[int], **fields: str) -> dict[str, str]:
    """The query of the training episodes from the first to the last of ``steps``."""
    return {"kind": "train", "step": f"{min(steps)}-{max(steps)}", **fields}


def numbers(records: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """The values of a metric, of the records that have it."""
    return [float(record[name]) for record in records if record.get(name) is not None]


def steps_of(records: Sequence[Mapping[str, Any]]) -> tuple[int, ...]:
    """The steps of ``records``."""
    return tuple(int(record["step"]) for record in records)


def plural(count: int, word: str) -> str:
    """A number with its noun, such as "1 step" or "3 steps"."""
    return f"{count} {word}{'' if count == 1 else 's'}"


def last_steps(count: int) -> str:
    """The newest steps in words, such as "the last step" or "the last 3 steps"."""
    return "the last step" if count == 1 else f"the last {count} steps"


def percent(share: float) -> str:
    """``share`` as a percentage, with a digit below 1%."""
    return f"{share:.0%}" if share >= 0.01 or share == 0 else f"{share:.1%}"
