"""Weights & Biases, a metric sink."""

from __future__ import annotations

import html
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from rl.tracking.sink import Ending, EpisodeText, RunInfo, Sink, SinkOptions

STEP = "step"
"""Name of the metric on the horizontal axis of every chart."""


@dataclass(frozen=True, kw_only=True)
class WandBOptions(SinkOptions):
    """The options of ``log=wandb``."""

    entity: str = ""
    """W&B: the team or user to which the run belongs; empty for your default."""
    group: str = ""
    """W&B: the group of the run."""
    tags: str = ""
    """W&B: labels, separated by commas."""
    mode: Literal["auto", "online", "offline"] = "auto"
    """W&B: "auto" uses WANDB_MODE, or "online". "offline" keeps the run in its folder until you
    call `wandb sync`."""


class WandB(Sink):
    """Logs to Weights & Biases. Sign in with ``wandb login`` or WANDB_API_KEY."""

    Options = WandBOptions
    package = "wandb"
    extra = "turnwise[wandb]"

    def open(self, run: RunInfo, id: str) -> str:
        """Start a run, or continue the run with this id."""
        import wandb

        options = cast(WandBOptions, self.options)
        mode = None if options.mode == "auto" else options.mode
        settings = wandb.Settings(
            # The command needs standard output.
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
            # Do not reuse a run that the user's own code has open.
            reinit="create_new",
            settings=settings,
        )
        # W&B drops records of a step before its own count, such as an evaluation after a resumed
        # checkpoint. It does not drop them if the step is a metric.
        self._run.define_metric(STEP)
        self._run.define_metric("*", step_metric=STEP)
        return str(self._run.id)

    @property
    def place(self) -> str:
        """The URL of the run's page, or the command that uploads the run."""
        return str(self._run.url or f"offline; upload it with: wandb sync {self._run.dir}/..")

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Add a row to the run's history. The text of an episode becomes a page of HTML."""
        import wandb

        shown = {
            name: wandb.Html(f"<pre>{html.escape(value)}</pre>", inject=False)
            if isinstance(value, EpisodeText)
            else value
            for name, value in metrics.items()
        }
        self._run.log({STEP: step, **shown})

    def finish(self, ending: Ending) -> None:
        """Record the result as the run's summary, and end the run."""
        import wandb

        images = {name: wandb.Image(str(path)) for name, path in ending.images.items()}
        if images:
            self._run.log(images)
        for key, value in ending.result.items():
            self._run.summary[f"result/{key}"] = value
        self._run.finish(exit_code=1 if ending.status == "failed" else 0)
