"""Checkpoints that a learner writes while the run goes on."""

import asyncio

import pytest

from agents.torch_thread import TorchThread
from rl.errors import RunFailure
from rl.learner.checkpoint import TRAINER_STATE
from rl.run.checkpoints import KEPT_CHECKPOINTS, Checkpoints


class Saving:
    """A learner whose checkpoints are written when the test says so."""

    def __init__(self):
        self.finish = asyncio.Event()
        self.failure = None
        self.begun = []

    async def start_saving(self, folder, state=None):
        self.begun.append(folder.name)
        return self._write(folder)

    async def _write(self, folder):
        await self.finish.wait()
        if self.failure is not None:
            raise self.failure
        folder.mkdir()
        (folder / TRAINER_STATE).touch()


@pytest.fixture
async def saving():
    return Saving()


@pytest.fixture
async def checkpoints(saving, tmp_path):
    thread = TorchThread(1)
    yield Checkpoints(tmp_path, saving, thread)
    await thread.close()


def names(checkpoints):
    return [path.name for path in checkpoints.complete()]


async def test_a_save_returns_while_the_learner_writes(checkpoints, saving):
    await checkpoints.save(1, {})
    await checkpoints.settle(wait=False)
    assert names(checkpoints) == []
    saving.finish.set()
    await checkpoints.settle()
    assert names(checkpoints) == ["step-000001"]


async def test_one_checkpoint_is_written_before_the_next_begins(checkpoints, saving):
    await checkpoints.save(1, {})
    second = asyncio.create_task(checkpoints.save(2, {}))
    await asyncio.sleep(0.05)
    assert saving.begun == ["step-000001"]
    saving.finish.set()
    await second
    assert saving.begun == ["step-000001", "step-000002"]
    for step in (3, 4):
        await checkpoints.save(step, {})
    await checkpoints.settle()
    assert names(checkpoints) == ["step-000003", "step-000004"]
    assert KEPT_CHECKPOINTS == 2


async def test_a_checkpoint_that_cannot_be_written_is_raised_once_and_early(checkpoints, saving):
    saving.failure = RunFailure("the disk is full")
    await checkpoints.save(1, {})
    await checkpoints.settle(wait=False)
    saving.finish.set()
    await asyncio.sleep(0.01)
    with pytest.raises(RunFailure, match="the disk is full"):
        await checkpoints.settle(wait=False)
    await checkpoints.settle()


async def test_the_end_of_a_failed_run_waits_and_raises_nothing(checkpoints, saving):
    saving.failure = RunFailure("the disk is full")
    await checkpoints.save(1, {})
    ending = asyncio.create_task(checkpoints.end())
    await asyncio.sleep(0.05)
    assert not ending.done()
    saving.finish.set()
    await ending
