"""The checkpoints of a run's steps: written while the run goes on, and continued from."""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Awaitable, Mapping
from pathlib import Path
from typing import Any

from agents.torch_thread import TorchThread
from rl.errors import RunFailure, UsageError
from rl.learner.checkpoint import TRAINER_STATE, tidy
from rl.learner.seam import Learner, SavesMeanwhile
from rl.run.backup import Backup

logger = logging.getLogger(__name__)
KEPT_CHECKPOINTS = 2


class Checkpoints:
    """The folders ``step-000020`` of a run, of which the newest few are kept.

    Args:
        folder: the folder that has them.
        learner: the learner that writes and loads them.
        thread: the thread that deletes old ones.
        backup: the copy of the run's folder, or None.
    """

    def __init__(
        self, folder: Path, learner: Learner, thread: TorchThread, backup: Backup | None = None
    ) -> None:
        self._folder = folder
        self._learner = learner
        self._thread = thread
        self._writing: asyncio.Future[None] | None = None
        """The checkpoint that the learner writes while the run goes on."""
        self._backup = backup
        self._copying: asyncio.Task[None] | None = None
        self._copied: Path | None = None
        """The checkpoint that is being copied, which must not be deleted."""

    def path(self, step: int) -> Path:
        """The checkpoint of a step."""
        return self._folder / f"step-{step:06d}"

    def complete(self) -> list[Path]:
        """The complete checkpoints, oldest first."""
        folders = sorted(self._folder.glob("step-*"))
        return [path for path in folders if (path / TRAINER_STATE).is_file()]

    async def save(self, step: int, state: Mapping[str, Any]) -> None:
        """Write the checkpoint of a step, and delete all but the newest few.

        A learner that ``SavesMeanwhile`` is still writing when the call returns; see
        :meth:`settle`.

        Args:
            step: the step.
            state: the trainer's state, which :meth:`load_newest` returns.

        Raises:
            RunFailure: this checkpoint, or the one before it, cannot be written.
        """
        await self.settle()
        path = self.path(step)
        if isinstance(self._learner, SavesMeanwhile):
            written = await self._learner.start_saving(path, state)
            self._writing = asyncio.ensure_future(self._finish(written))
        else:
            await self._learner.save(path, state, resumable=True)
            await self._saved()

    async def settle(self, *, wait: bool = True) -> None:
        """Wait until the last checkpoint is written, or only look whether it failed.

        Raises:
            RunFailure: it cannot be written.
        """
        if self._writing is not None and (wait or self._writing.done()):
            writing, self._writing = self._writing, None
            await writing

    async def end(self) -> None:
        """Wait for the last checkpoint of a run that failed, whose failure is the one to report."""
        if self._writing is not None:
            await asyncio.wait([self._writing])
            self._writing.exception()
        if self._copying is not None:
            await self._copying

    async def back_up(self) -> None:
        """Bring the backup up to date at the end of the run, if there is one.

        Raises:
            RunFailure: it cannot be.
        """
        if self._backup is None:
            return
        if self._copying is not None:
            await self._copying
        newest = self.complete()[-1:]
        await asyncio.to_thread(self._backup.copy, newest[0] if newest else None)

    async def load_newest(self) -> dict[str, Any] | None:
        """Load the newest usable checkpoint into the learner, and return the trainer's state.

        An unusable checkpoint is set aside, and the one before it is used. None if there are no
        checkpoints.

        Raises:
            UsageError: there are checkpoints, but none can be used.
        """
        tidy(self._folder, self.complete()[:-KEPT_CHECKPOINTS])
        unusable: list[tuple[Path, ValueError]] = []
        for checkpoint in reversed(self.complete()):
            try:
                found = await self._learner.load(checkpoint)
            except UsageError:
                raise
            except ValueError as error:
                unusable.append((checkpoint, error))
                continue
            for path, why in unusable:
                aside = path.with_name(f"unusable-{path.name}")
                shutil.rmtree(aside, ignore_errors=True)
                path.rename(aside)
                logger.warning("%s is set aside, continuing from %s: %s", path, checkpoint, why)
            return found
        if not unusable:
            return None
        raise UsageError(
            f"no checkpoint of {self._folder.parent} can be used ({unusable[0][1]}): choose "
            "another out=..."
        )

    async def _finish(self, written: Awaitable[None]) -> None:
        await written
        await self._saved()

    async def _saved(self) -> None:
        """Delete old checkpoints, and begin to copy the new one unless one is being copied."""
        old = [path for path in self.complete()[:-KEPT_CHECKPOINTS] if path != self._copied]
        await self._thread.do(tidy, self._folder, old)
        if self._backup is not None and self._copied is None:
            self._copied = self.complete()[-1]
            self._copying = asyncio.create_task(self._copy(self._backup, self._copied))

    async def _copy(self, backup: Backup, checkpoint: Path) -> None:
        try:
            await asyncio.to_thread(backup.copy, checkpoint)
        except RunFailure as error:
            # The run goes on: it is whole here, and the next checkpoint tries again.
            logger.warning("%s; the next checkpoint is copied again", error)
        finally:
            self._copied = None
