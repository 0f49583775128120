"""A command's process, and a program that uses the Python API: what a run may do to each."""

from __future__ import annotations

import gc

import pytest

from rl.api.job import Job
from rl.run.process.host import COMMAND


@pytest.fixture
def nothing_frozen():
    """As in a new process; the suite itself freezes what it collected."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("nothing_frozen")
async def test_a_commands_collections_skip_what_was_there():
    present = len(gc.get_objects())
    async with COMMAND.short_collections():
        assert gc.get_freeze_count() > present / 2
        assert len(gc.get_objects()) < present / 2
    assert gc.get_freeze_count() == 0, "garbage from before is collected again afterwards"
    assert len(gc.get_objects()) > present / 2


async def test_what_a_process_froze_itself_stays_frozen():
    # Objects that are frozen may still end.
    most = 0.9 * gc.get_freeze_count()
    assert most > 0
    async with COMMAND.short_collections():
        assert gc.get_freeze_count() > most
    assert gc.get_freeze_count() > most


def test_a_programs_collections_stay_as_they_are():
    async def work(job):
        before = gc.get_freeze_count()
        async with job.short_collections():
            return gc.get_freeze_count() - before

    assert Job(work, 5.0).result() == 0
