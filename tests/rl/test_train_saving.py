"""Episodes go on while a checkpoint is written and while a step's episodes are judged."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import time

import pytest
import torch

import rl.learner.local
import rl.run.trainer
from rl.errors import RunFailure
from rl.learner.checkpoint import load_trainer_state
from rl.learner.local import LocalLearner
from rl.learner.registration import register
from rl.run.folder import read_jsonl
from rl.train import main

ANSWER_S = 20.0
"""Longer than any loop takes to answer that nothing holds."""


@pytest.fixture
def loops(monkeypatch):
    """The event loop of the run under way."""
    found = []
    enter = rl.run.trainer.Trainer.__aenter__

    async def entering(self):
        found.append((asyncio.get_running_loop(), self))
        return await enter(self)

    monkeypatch.setattr(rl.run.trainer.Trainer, "__aenter__", entering)
    return found


def as_saved(state) -> bytes:
    """The bytes that a checkpoint has of the episodes and tasks ahead."""
    file = io.BytesIO()
    torch.save((state["stream"], state["curriculum"]), file)
    return file.getvalue()


def answers(loop) -> bool:
    """Whether the event loop does something else while this thread waits."""

    async def look() -> bool:
        return True

    looking = asyncio.run_coroutine_threadsafe(look(), loop)
    try:
        return looking.result(ANSWER_S)
    except TimeoutError:
        looking.cancel()
        return False


def test_the_loop_answers_while_weights_are_written_and_episodes_are_judged(
    words, tmp_path, monkeypatch, loops
):
    reported = []

    def watched(module, name):
        work = getattr(module, name)

        def doing(*args):
            what = args[0].name if name == "save_checkpoint" else name
            reported.append((what, answers(loops[0][0])))
            return work(*args)

        monkeypatch.setattr(module, name, doing)

    watched(rl.learner.local, "save_checkpoint")
    watched(rl.run.trainer, "shape")
    assert main(words(tmp_path / "run", steps=1)) == 0
    assert set(reported) == {(name, True) for name in ("best", "shape", "step-000001")}


def test_a_checkpoint_is_of_the_moment_at_which_it_was_begun(words, tmp_path, monkeypatch, loops):
    save, seen = rl.learner.local.save_checkpoint, []

    def slow(folder, model, tokenizer, state, weights=None):
        loop, trainer = loops[0]
        if folder.name == "step-000001":
            before = as_saved(state)
            deadline = time.monotonic() + ANSWER_S
            # All that may be played ahead is, in the meantime.
            while trainer.stream.num_running and time.monotonic() < deadline:
                assert answers(loop)
            seen.append(trainer.stream.num_running)
            assert as_saved(state) == before
        save(folder, model, tokenizer, state)

    monkeypatch.setattr(rl.learner.local, "save_checkpoint", slow)
    out = tmp_path / "run"
    settings = {"staleness": 2, "steps": 3, "save_every": 1, "curriculum__max_draws": 3}
    assert main(words(out, **settings)) == 0
    assert seen == [0]


@pytest.mark.quick
def test_a_validation_counts_although_a_stop_is_requested_during_its_save(
    words, tmp_path, monkeypatch, loops
):
    save = rl.learner.local.save_checkpoint

    def interrupted(folder, model, tokenizer, state, weights=None):
        if folder.name == "best" and state["step"] == 1:
            os.kill(os.getpid(), signal.SIGINT)
            # The first answer may come before the request is heard.
            assert [answers(loops[0][0]) for _ in range(5)] == [True] * 5
        save(folder, model, tokenizer, state)

    record_validation = rl.run.trainer.Trainer.record_validation

    async def better(self, success):
        await record_validation(self, success + self.progress.step)

    monkeypatch.setattr(rl.learner.local, "save_checkpoint", interrupted)
    monkeypatch.setattr(rl.run.trainer.Trainer, "record_validation", better)
    out = tmp_path / "run"
    assert main(words(out, steps=3, eval__every=1)) == 130
    records = {r["step"]: r for r in read_jsonl(out / "metrics.jsonl")}
    assert sorted(records) == [0, 1]
    assert load_trainer_state(out / "checkpoints" / "best")["step"] == 1
    assert "eval/success" in records[1]
    progress = load_trainer_state(out / "checkpoints" / "step-000001")["progress"]
    assert (progress["step"], progress["validation_due"]) == (1, False)


class Unsaved(LocalLearner):
    """A learner that says of its second checkpoint, after the call, that it cannot be written."""

    async def start_saving(self, folder, state=None):
        if folder.name != "step-000002":
            await self.save(folder, state, resumable=True)
        return self._written(folder)

    async def _written(self, folder):
        if folder.name == "step-000002":
            raise RunFailure(f"{folder.name} cannot be written")


async def open_unsaved(spec, host):
    return await host.thread.do(Unsaved, spec, host)


register("unsaved", open_unsaved)


@pytest.mark.parametrize("steps", [2, 4])
def test_a_run_whose_learner_fails_to_write_meanwhile_ends_at_its_next_step(
    words, tmp_path, capfd, steps
):
    """If there is no next step, at its end."""
    out = tmp_path / "run"
    assert main(words(out, learner="unsaved", steps=steps, save_every=1)) == 1
    assert capfd.readouterr().err.splitlines()[-1] == "error: step-000002 cannot be written"
    steps_done = [r["step"] for r in read_jsonl(out / "metrics.jsonl") if "reward" in r]
    assert steps_done == [1, 2]
    assert [path.name for path in (out / "checkpoints").glob("step-*")] == ["step-000001"]
    # And the run continues from the one that was written.
    assert main(words(out, steps=3, save_every=1, resume="auto")) == 0
