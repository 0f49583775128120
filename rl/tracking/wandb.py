"""Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from rl.tracking.sink import Ending, RunInfo, Sink, SinkOptions

STEP = "step"
"""The metric that every chart has as its axis."""


@dataclass(frozen=True, kw_only=True)
class WandBOptions(SinkOptions):
    """The options of ``log=wandb``."""

    entity: str = ""
    """W&B: the team or user that the run belongs to; empty: your default."""
    group: str = ""
    """W&B: runs of one group stand together."""
    tags: str = ""
    """W&B: labels, with commas between."""
    mode: Literal["auto", "online", "offline"] = "auto"
    """W&B: auto is what WANDB_MODE says, else online; offline keeps the run in its folder until
    `wandb sync`."""


class WandB(Sink):
    """Logs to Weights & Biases; ``wandb login`` or WANDB_API_KEY says who you are."""

    Options = WandBOptions
    package = "wandb"
    extra = "turnwise[wandb]"

    def open(self, run: RunInfo, id: str) -> str:
        """Start the run, or go on with the one of this id."""
        import wandb

        options = cast(WandBOptions, self.options)
        mode = None if options.mode == "auto" else options.mode
        settings = wandb.Settings(
            # Standard output is the command's own.
            silent=True,
            console="off",
            finish_timeout=options.timeout_s,
            finish_timeout_raises=True,
        )
        self._run = wandb.init(
            project=options.project,
            entity=options.entity or None,
            name=options.name or run.folder.name,
            group=options.group or None,
            tags=[tag.strip() for tag in options.tags.split(",") if tag.strip()] or None,
            job_type=run.command,
            id=id or None,
            resume="allow" if id else None,
            config=dict(run.config),
            allow_val_change=True,
            dir=str(run.folder),
            mode=mode,
            # A run that the user's own code has open stays theirs.
            reinit="create_new",
            settings=settings,
        )
        # W&B drops a record of an earlier step than its own count, as an evaluation after a
        # resumed checkpoint is; a step among the metrics has no such rule.
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        return str(self._run.id)

    @property
    def place(self) -> str:
        """The run's page, or how to upload it."""
        return str(self._run.url or f"offline; upload it with: wandb sync {self._run.dir}/..")

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add a row to the run's history."""
        self._run.log({STEP: step, **metrics})

    def finish(self, ending: Ending) -> None:
        """Record the result as the run's summary, and end the run."""
        import wandb

        pictures = {name: wandb.Image(str(path)) for name, path in ending.images.items()}
        if pictures:
            self._run.log(pictures)
        for key, value in ending.result.items():
            self._run.summary[f"result/{key}"] = value
        self._run.finish(exit_code=1 if ending.status == "failed" else 0)
