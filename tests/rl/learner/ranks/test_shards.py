"""What keeps ranks from writing a checkpoint: a full disk is reported, a lost rank is lost."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from small_learner import build_model
from torch.distributed.checkpoint.api import CheckpointException

from rl.errors import RunFailure
from rl.learner.checkpoint import begin_checkpoint, save_checkpoint
from rl.learner.ranks import shards
from rl.learner.ranks.learner import RankedLearner
from rl.learner.ranks.shards import ExchangeFailed, start_writing
from rl.learner.seam import LearnerLost

FULL = OSError(28, "No space left on device")


@pytest.fixture
def written(monkeypatch, tmp_path):
    """What ``start_writing`` returns if torch's writing fails in a given way."""

    def after(failure):
        def failed(*args, **kwargs):
            future = Future()
            future.set_exception(failure)
            return future

        monkeypatch.setattr(shards, "async_save", failed)
        return start_writing({}, tmp_path, SimpleNamespace(size=lambda: 2))

    return after


def test_a_rank_that_cannot_write_is_one_line_and_leaves_nothing(written, tmp_path):
    begin_checkpoint(tmp_path / "c")
    full = written(CheckpointException("", {1: (FULL, None)}))
    with pytest.raises(RunFailure, match=r"c cannot be written: .*No space left on device"):
        save_checkpoint(tmp_path / "c", build_model(), weights=full)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_exchange_is_no_failure_to_write(written, tmp_path):
    """Rank 0 ends by it, and the run continues with new ranks."""
    begin_checkpoint(tmp_path / "c")
    broken = RuntimeError("Connection closed by peer")
    with pytest.raises(ExchangeFailed, match="closed by peer"):
        save_checkpoint(tmp_path / "c", build_model(), weights=written(broken))


async def test_ranks_that_do_not_finish_a_checkpoint_are_lost_at_their_deadline(tmp_path):
    """They answer, but a file system hangs."""
    ended = []

    async def call(name, args):
        return name != "saved"

    processes = SimpleNamespace(call=call, timeout_s=0.5, end=ended.append)
    learner = RankedLearner(processes, None)
    written = await learner.start_saving(tmp_path / "c")
    with pytest.raises(LearnerLost, match=r"did not write .*/c within 0.5 s \(learner.timeout_s\)"):
        await written
    assert len(ended) == 1
