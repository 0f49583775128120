"""The tracker of a command, which passes records to sinks and callbacks.

metrics.jsonl and the screen get a record at once. Other sinks get it in their own threads. The run
waits for callbacks.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rl.errors import RunFailure
from rl.settings.tracking import TrackingConfig
from rl.tracking.background import Background, join_all
from rl.tracking.callback import Callback, make_callbacks
from rl.tracking.mark import Mark
from rl.tracking.samples import episode_texts
from rl.tracking.sink import Ending, RunInfo, Sink, make_sinks

if TYPE_CHECKING:
    from rl.rollout.trajectory import TrajectoryGroup


class Tracker:
    """The sinks and callbacks of one run.

    Args:
        run: the run; :meth:`open` sets its step.
        config: the settings that name sinks and callbacks.
        direct: sinks that the run calls directly. Their errors end the run.
        report: called with a line for the user.
        callbacks: additional callbacks, from Python.
        marks: folder of the files that record which metrics each tracker has, for a resumed run.
            None if the run cannot be resumed.

    Raises:
        UsageError: a package is not installed, or a callback's name or option is wrong.
    """

    def __init__(
        self,
        run: RunInfo,
        config: TrackingConfig,
        direct: Sequence[Sink],
        report: Callable[[str], None],
        callbacks: Sequence[Callback] = (),
        marks: Path | None = None,
    ) -> None:
        self.run = run
        self.report = report
        self.callbacks = make_callbacks(config.callbacks, callbacks)
        self._direct, self._marks = direct, marks
        self._options = config.log.settings
        self._sinks = make_sinks(config.log.names, self._options)
        self._background: dict[str, Background] = {}
        self._evaluations: list[tuple[str, Sequence[TrajectoryGroup]]] = []
        self._ending: Ending | None = None
        self._is_open = False

    def open(self, step: int = 0) -> None:
        """Start the sinks, wait for them, and call ``on_start``.

        Args:
            step: the last step of a resumed run.

        Raises:
            UsageError: a sink cannot start.
            RunFailure: a callback raised an error.
        """
        self.run = replace(self.run, step=step)
        for sink in self._direct:
            sink.open(self.run, "")
        self._background = {
            name: Background(name, sink, self.run, self._mark(name), self.report)
            for name, sink in self._sinks.items()
        }
        self._is_open = True
        try:
            for background in self._background.values():
                background.start()
            for background in self._background.values():
                background.wait_open()
            self.callbacks.start(self.run)
        except BaseException as error:
            self.close(error)
            raise

    def log(self, record: Mapping[str, Any]) -> None:
        """Pass a record, with its ``step``, to all sinks. Returns when metrics.jsonl contains it.

        Raises:
            RunFailure: metrics.jsonl or the screen cannot be written.
        """
        step, metrics = record["step"], {k: v for k, v in record.items() if k != "step"}
        for sink in self._direct:
            sink.log(step, metrics)
        for background in self._background.values():
            background.log(step, metrics)

    def log_episodes(self, step: int, groups: Sequence[TrajectoryGroup]) -> None:
        """Pass the text of ``log.episodes`` episodes of a step to the sinks in the background."""
        if self._background and self._options.episodes:
            texts = episode_texts(groups, self._options.episodes)
            for background in self._background.values():
                background.log(step, texts)

    def evaluated(self, split: str, groups: Sequence[TrajectoryGroup]) -> None:
        """Keep the episodes of an evaluation until :meth:`call` passes them to the callbacks."""
        if self.callbacks:
            self._evaluations.append((split, groups))

    def call(
        self, record: Mapping[str, Any], groups: Sequence[TrajectoryGroup] | None = None
    ) -> None:
        """Call the callbacks with a logged record.

        Args:
            record: the record, with its ``step``.
            groups: the step's episodes, or None if the record has only evaluations.

        Raises:
            RunFailure: a callback raised an error.
        """
        evaluations, self._evaluations = self._evaluations, []
        for split, played in evaluations:
            self.callbacks.evaluation(record["step"], split, record, played)
        if groups is not None:
            self.callbacks.step(record["step"], record, groups)

    def finish(self, result: Mapping[str, Any], images: Mapping[str, Path] | None = None) -> None:
        """Store the result, which :meth:`close` passes to sinks and callbacks."""
        done = result.get("finished", True)
        drawn = {name: path for name, path in (images or {}).items() if path.exists()}
        self._ending = Ending("finished" if done else "interrupted", result, drawn)

    def close(self, error: BaseException | None) -> None:
        """End the run in all sinks and call ``on_end``.

        Waits for sinks at most ``timeout_s`` seconds.

        Args:
            error: the error that ends the run, or None.

        Raises:
            RunFailure: a callback raised an error. If ``error`` is set, it gets a note instead.
        """
        if not self._is_open:
            return
        self._is_open = False
        ending = self._ending
        if error is not None or ending is None:
            stopped = isinstance(error, (KeyboardInterrupt, asyncio.CancelledError))
            ending = Ending("interrupted" if stopped or error is None else "failed")
        for background in self._background.values():
            background.finish(ending)
        try:
            self.callbacks.end(None if ending.status == "failed" else ending.result)
        except RunFailure as failure:
            if error is None:
                raise
            error.add_note(str(failure))
        finally:
            join_all(self._background, self._options.timeout_s)

    def _mark(self, name: str) -> Mark:
        return Mark(self._marks and self._marks / f"{name}.json")

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close(error)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Sinks and callbacks may wait; the event loop does not.
        await asyncio.to_thread(self.close, error)
