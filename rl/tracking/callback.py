"""Callbacks: a user's own code, called at the start, after each step and at the end of a run."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rl.errors import RunFailure, UsageError
from tools.references import is_reference, load_function
from tools.registration import named
from tools.registry import PluginImportError, Registry, UnknownNameError, build

if TYPE_CHECKING:
    from rl.rollout.trajectory import TrajectoryGroup
    from rl.tracking.sink import RunInfo

_FILE = re.compile(r"(?:(?<=^)|(?<=,)|(?<=\s))[^\s,():]+\.py(?=:\w)")
"""The file of a reference among the callbacks."""
CALLBACKS = Registry("callback", "turnwise.callbacks")


class Callback:
    """Base class of a user's own code in a run. Define the methods that you need.

    The run waits for each method. If a method raises an exception, the run saves the finished steps
    and ends with one line that names the callback.
    """

    def on_start(self, run: RunInfo) -> None:
        """Called when the run starts, or when it continues after step ``run.step``."""

    def on_step(
        self, step: int, metrics: Mapping[str, Any], groups: Sequence[TrajectoryGroup]
    ) -> None:
        """Called after each step.

        Args:
            step: the number of the step.
            metrics: the step's line of metrics.jsonl.
            groups: the step's episodes. Each has ``shaped_reward``, the reward used for training,
                and ``advantages``, the advantage of each trained token. Empty in commands that
                learn from a file.
        """

    def on_evaluation(
        self, step: int, split: str, metrics: Mapping[str, Any], groups: Sequence[TrajectoryGroup]
    ) -> None:
        """Called after each evaluation on tasks of a split.

        Args:
            step: the step after which the weights were evaluated.
            split: "validation" or "test", or another split of ``rl.eval``.
            metrics: the evaluation's line of metrics.jsonl; in ``rl.eval``, the result.
            groups: the episodes.
        """

    def on_end(self, result: Mapping[str, Any] | None) -> None:
        """Called at the end of the run.

        Args:
            result: the content of result.json, or None if the run failed.
        """


def register_callback(name: str, target: Any) -> None:
    """Register a callback's class, or ``"module:Class"``, as ``callbacks=NAME`` in this process.

    Raises:
        ValueError: the name is already registered.
    """
    CALLBACKS.register(name, target)


class Callbacks:
    """The callbacks of one run, in order.

    Args:
        members: callbacks by name.
    """

    def __init__(self, members: Sequence[tuple[str, Callback]]) -> None:
        self._members = members

    def __bool__(self) -> bool:
        return bool(self._members)

    def start(self, run: RunInfo) -> None:
        """Call ``on_start``.

        Raises:
            RunFailure: a callback raised an error. The other methods also raise RunFailure.
        """
        self._each("on_start", lambda callback: callback.on_start(run))

    def step(
        self, step: int, metrics: Mapping[str, Any], groups: Sequence[TrajectoryGroup]
    ) -> None:
        """Call ``on_step``."""
        what = f"on_step of step {step}"
        self._each(what, lambda callback: callback.on_step(step, metrics, groups))

    def evaluation(
        self, step: int, split: str, metrics: Mapping[str, Any], groups: Sequence[TrajectoryGroup]
    ) -> None:
        """Call ``on_evaluation``."""
        what = f"on_evaluation of step {step}"
        self._each(what, lambda callback: callback.on_evaluation(step, split, metrics, groups))

    def end(self, result: Mapping[str, Any] | None) -> None:
        """Call ``on_end``."""
        self._each("on_end", lambda callback: callback.on_end(result))

    def _each(self, what: str, call: Callable[[Callback], None]) -> None:
        for name, callback in self._members:
            try:
                call(callback)
            # Foreign code: its errors are reported under the callback's name.
            except (Exception, SystemExit) as error:
                raise RunFailure(
                    f"callback {name!r} failed in {what}: {type(error).__name__}: {error} "
                    f"({_position(error)})"
                ) from error


def make_callbacks(text: str, objects: Sequence[Callback] = ()) -> Callbacks:
    """The callbacks of a run.

    Args:
        text: registered names or references such as ``file.py:Class``, separated by commas, with
            options in parentheses.
        objects: additional callbacks, from Python.

    Raises:
        UsageError: a name is unknown, an option is wrong, or an object is no callback.
    """
    try:
        members = [(name, _make(name, options)) for name, options in named(text)]
    except SyntaxError as error:
        raise UsageError(
            f"callbacks ({text}): expected NAME or NAME(KEY=VALUE), separated by commas"
        ) from error
    except UsageError:
        raise
    except (UnknownNameError, PluginImportError, TypeError, ValueError) as error:
        raise UsageError(f"callbacks ({text}): {error}") from error
    for found in objects:
        given: object = found
        if not isinstance(given, Callback):
            remedy = f": give an object, {given.__name__}()" if isinstance(given, type) else ""
            raise UsageError(f"callbacks: {found!r} must be an rl.tracking.Callback{remedy}")
    return Callbacks([*members, *((type(found).__name__, found) for found in objects)])


def full_references(text: str) -> str:
    """``callbacks=`` with absolute paths of files, for a run that continues in another folder."""
    return _FILE.sub(lambda file: str(Path(file[0]).expanduser().resolve()), text)


def _make(name: str, options: Mapping[str, Any]) -> Callback:
    found = _referred(name) if is_reference(name) else CALLBACKS.get(name)
    if isinstance(found, Callback) and options:
        raise TypeError(f"{name} has no options: drop {min(options)!r}")
    made = found if isinstance(found, Callback) else build("callback", name, found, options)
    if not isinstance(made, Callback):
        raise TypeError(f"callback {name!r} is {made!r}: expected an rl.tracking.Callback")
    return made


def _referred(reference: str) -> Callable[..., Any]:
    try:
        return load_function(reference, "callbacks")
    except ValueError as error:
        raise UsageError(str(error)) from error


def _position(error: BaseException) -> str:
    """File and line where an error was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "no traceback"
