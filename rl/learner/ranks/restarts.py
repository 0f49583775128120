"""New ranks for a run whose ranks were lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from rl.errors import INTERRUPTED, RunFailure
from rl.files import write_stderr
from rl.settings.train import TrainConfig

Result = TypeVar("Result")


async def with_restarts(
    attempt: Callable[[TrainConfig], Awaitable[Result]], config: TrainConfig
) -> Result:
    """The result of a run, which continues from its newest checkpoint if its learner is lost.

    It continues as a resumed run does: steps after the checkpoint are played and learned again, and
    their former files are removed.

    Args:
        attempt: trains until the end.
        config: the run's settings; ``learner.restarts`` limits the number of restarts.

    Raises:
        LearnerLost: the learner was lost once more than ``learner.restarts``.
        RunFailure: the run was asked to stop before its learner was lost, as by a scheduler that
            stops the ranks as well.
    """
    for left in reversed(range(config.learner.settings.restarts + 1)):
        try:
            return await attempt(config)
        except RunFailure as error:
            from rl.learner.seam import LearnerLost  # loads torch

            if not isinstance(error, LearnerLost) or (left == 0 and not error.asked_to_stop):
                raise
            if error.asked_to_stop:
                stopped = RunFailure(
                    f"{error}, after the run was asked to stop: resume=auto continues from the "
                    "newest checkpoint"
                )
                stopped.exit_code = INTERRUPTED
                raise stopped from error
            write_stderr(f"{error}; new ranks continue from the newest checkpoint\n")
            config = replace(config, resume="auto")
    raise AssertionError("the last attempt returns or raises")
