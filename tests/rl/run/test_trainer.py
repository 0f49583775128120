"""Stopped, killed and damaged runs: they continue from whole files, or name the damaged one."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
import torch
import warm_start
from safetensors.torch import load_file, save_file

import rl.run.trainer
import rl.runtime.runtime
from agents.policy import PolicyFailure
from rl.errors import RunFailure
from rl.learner.checkpoint import load_trainer_state
from rl.run.folder import read_jsonl
from rl.run.process.state import read_state, write_state
from rl.status import main as status
from rl.train import main
from rl.viewer.runs import Run

pytestmark = pytest.mark.usefixtures("without_charts")
DETERMINISTIC = {"deterministic": "true", "env__max_turns": 2, "save_every": 1, "eval__every": 1}


def metrics(out):
    return read_jsonl(out / "metrics.jsonl")


def names(out):
    return sorted(path.name for path in (out / "checkpoints").iterdir())


def weights(out, checkpoint):
    return load_file(out / "checkpoints" / checkpoint / "model.safetensors")


def assert_equal_weights(first, second):
    torch.testing.assert_close(first, second, rtol=0, atol=0)


def last_error(capfd):
    lines = capfd.readouterr().err.splitlines()
    assert not any(line.startswith("Traceback") for line in lines)
    return lines[-1]


# ---- the best weights ------------------------------------------------------------------------


def test_best_weights_survive_a_process_that_died_while_it_replaced_them(words, tmp_path, capfd):
    out = tmp_path / "run"
    assert main(words(out, steps=1)) == 0
    best = weights(out, "best")
    checkpoints = out / "checkpoints"
    (checkpoints / "best").rename(checkpoints / ".best.old")
    assert main(words(out, steps=1, eval__test_tasks=6, resume="auto")) == 0
    assert_equal_weights(weights(out, "best"), best)
    assert names(out) == ["best", "step-000001"]
    assert "test tasks, best weights by validation" in capfd.readouterr().err


def test_best_weights_of_an_abandoned_step_keep_their_own_success(
    words, tmp_path, monkeypatch, capfd
):
    """Step 2 validates best of all, and the process dies before its checkpoint."""
    out = tmp_path / "run"
    successes = iter([0.1, 0.2, 0.9, 0.3, 0.4])
    evaluate, save = rl.runtime.runtime.Runtime.evaluate, rl.run.trainer.Trainer.save

    async def evaluated(self, split, *others):
        rate, groups = await evaluate(self, split, *others)
        if split == "validation":
            rate = dataclasses.replace(rate, rate=next(successes))
        return rate, groups

    async def dying(self):
        if self.progress.step == 2:
            raise MemoryError("killed")
        await save(self)

    monkeypatch.setattr(rl.runtime.runtime.Runtime, "evaluate", evaluated)
    shared = {"steps": 3, "eval__every": 1, "save_every": 1}
    with monkeypatch.context() as patch:
        patch.setattr(rl.run.trainer.Trainer, "save", dying)
        with pytest.raises(MemoryError):
            main(words(out, **shared))
    best = weights(out, "best")
    assert main(words(out, **shared, eval__test_tasks=6, resume="auto")) == 0
    assert_equal_weights(weights(out, "best"), best)
    assert load_trainer_state(out / "checkpoints" / "best") == {"step": 2, "success": 0.9}
    assert "best weights by validation (step 2)" in capfd.readouterr().err


def test_best_weights_that_are_gone_are_one_line(words, tmp_path, capfd):
    out = tmp_path / "run"
    assert main(words(out, steps=1)) == 0
    shutil.rmtree(out / "checkpoints" / "best")
    assert main(words(out, steps=1, eval__test_tasks=6, resume="auto")) == 1
    assert last_error(capfd) == (
        f"error: the best weights cannot be tested: {out}/checkpoints/best is gone"
    )
    # A longer run validates, and so has best weights again.
    assert main(words(out, steps=2, resume="auto")) == 0
    assert names(out) == ["best", "step-000001", "step-000002"]


# ---- checkpoints that cannot be used ---------------------------------------------------------


def cut_state(checkpoint):
    path = checkpoint / "trainer_state.pt"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_weights(checkpoint):
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def poison_weights(checkpoint):
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    next(iter(tensors.values())).fill_(float("nan"))
    save_file(tensors, path, {"format": "pt"})


@pytest.mark.parametrize("damage", [cut_state, cut_weights, poison_weights])
def test_a_damaged_newest_checkpoint_is_set_aside_for_the_one_before_it(
    words, tmp_path, damage, caplog
):
    out, whole = tmp_path / "run", tmp_path / "whole"
    assert main(words(whole, **DETERMINISTIC, steps=3)) == 0
    assert main(words(out, **DETERMINISTIC, steps=2)) == 0
    damage(out / "checkpoints" / "step-000002")
    assert main(words(out, **DETERMINISTIC, steps=3, resume="auto")) == 0
    assert "step-000002 is set aside, continuing from" in caplog.text
    assert names(out) == ["best", "step-000002", "step-000003", "unusable-step-000002"]
    assert [r["step"] for r in metrics(out) if "reward" in r] == [1, 2, 3]
    assert_equal_weights(weights(out, "step-000003"), weights(whole, "step-000003"))


def test_where_every_checkpoint_is_damaged_nothing_is_touched(words, tmp_path, capfd):
    out = tmp_path / "run"
    assert main(words(out, **DETERMINISTIC, steps=2)) == 0
    before, kept = metrics(out), names(out)
    for name in kept[1:]:
        cut_state(out / "checkpoints" / name)
    for _ in range(2):
        assert main(words(out, **DETERMINISTIC, steps=3, resume="auto")) == 1
        assert last_error(capfd).startswith(f"error: no checkpoint of {out} can be used (")
    assert (metrics(out), names(out)) == (before, kept)


# ---- damaged run files -----------------------------------------------------------------------


@pytest.mark.quick
def test_a_torn_last_line_and_stray_files_do_not_stop_a_resumed_run(words, tmp_path):
    out = tmp_path / "run"
    assert main(words(out, steps=2, save_every=1)) == 0
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "rew')
    for stray in (".DS_Store", "notes.txt", "step-old.jsonl.gz"):
        (out / "trajectories" / stray).touch()
    assert main(words(out, steps=3, resume="auto")) == 0
    assert [r["step"] for r in metrics(out) if "reward" in r] == [1, 2, 3]
    assert (out / "trajectories" / "notes.txt").exists()


def test_a_broken_line_inside_the_metrics_is_one_line(words, tmp_path, capfd):
    out = tmp_path / "run"
    assert main(words(out, steps=1)) == 0
    path = out / "metrics.jsonl"
    path.write_text('{"st\n' + path.read_text())
    assert main(words(out, steps=2, resume="auto")) == 1
    assert last_error(capfd).startswith(f"error: {path}, line 1 is no record of a run (")


@contextmanager
def largest_file(num_bytes):
    """Within it the system refuses longer files, as a full disk would."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_is_one_line_and_leaves_a_run_to_go_on_with(words, tmp_path, capsys):
    # Captured without a file, which would be limited as well.
    out = tmp_path / "run"
    assert main(words(out, steps=1)) == 0
    for num_bytes, file in ((20_000, f"checkpoint {out}/checkpoints/"), (50, f"{out}/")):
        with largest_file(num_bytes):
            assert main(words(out, steps=2, resume="auto")) == 1
        line = last_error(capsys)
        assert line.startswith(f"error: {file}")
        assert "cannot be written: " in line
    assert not [name for name in names(out) if name.endswith(".tmp")]
    assert main(words(out, steps=2, resume="auto")) == 0
    assert [r["step"] for r in metrics(out) if "reward" in r] == [1, 2]


# ---- which run a folder holds ----------------------------------------------------------------


@pytest.mark.parametrize("settings", [{"group_size": 2}, {"algo": "ppo"}])
def test_a_folder_without_its_metrics_still_holds_a_run(words, tmp_path, capfd, settings):
    out = tmp_path / "run"
    assert main(words(out, steps=1)) == 0
    (out / "metrics.jsonl").unlink()
    assert main(words(out, steps=1, **settings)) == 1
    assert last_error(capfd).startswith(f"error: {out} holds a run already: ")
    assert main(words(out, steps=2, **settings, resume="auto")) == 1
    assert last_error(capfd).startswith(f"error: {out} was started with ")
    assert main(words(out, steps=2, resume="auto")) == 0
    assert [r["step"] for r in metrics(out)] == [2]


def test_a_finished_run_is_tested_once(words, tmp_path, capfd):
    out = tmp_path / "run"
    assert main(words(out, steps=1, eval__test_tasks=6)) == 0
    before = metrics(out)
    capfd.readouterr()
    assert main(words(out, steps=1, eval__test_tasks=6, resume="auto")) == 0
    assert "already finished: 1 steps, success on test tasks " in capfd.readouterr().err
    assert metrics(out) == before
    assert main(words(out, steps=2, eval__test_tasks=6, resume="auto")) == 0
    assert [r["step"] for r in metrics(out) if "test/success" in r] == [0, 1, 2]


@pytest.fixture
def finished(words, tmp_path):
    """The folder of a run that finished one step, and a function that continues it."""
    out = tmp_path / "run"
    assert main(words(out, steps=1, eval__tasks=0)) == 0

    def resume(**settings):
        return main(words(out, eval__tasks=0, resume="auto", **settings))

    return out, resume


def assert_finished(out):
    assert status([str(out)]) == 0
    assert json.loads((out / "result.json").read_text())["finished"] is True
    assert Run("run", out).state()["verdict"] == "finished"


@pytest.mark.parametrize("settings", [{"steps": 1}, {"steps": 5, "max_seconds": 0.001}])
def test_a_finished_run_has_nothing_to_do_and_opens_nothing(finished, monkeypatch, settings):
    out, resume = finished
    state = read_state(out)
    # As versions that noticed it late left it behind.
    write_state(out, dataclasses.replace(state, state="interrupted", step=0))

    def refuse(*args):
        raise AssertionError("something was opened")

    monkeypatch.setattr("rl.runtime.runtime.open_runtime", refuse)
    monkeypatch.setattr("rl.train._check", refuse)
    assert resume(**settings) == 0
    assert_finished(out)


def asked_to_stop(*args, **named):
    os.kill(os.getpid(), signal.SIGINT)
    return asyncio.sleep(60)


def raises(error):
    def raising(*args, **named):
        raise error

    return raising


@pytest.mark.parametrize(
    ("place", "act", "code"),
    [
        ("rl.runtime.runtime.open_runtime", raises(KeyboardInterrupt()), 130),
        ("rl.runtime.runtime.open_runtime", raises(PolicyFailure("no server", retryable=False)), 1),
        ("rl.run.trainer.Trainer.rollout", asked_to_stop, 130),
        ("rl.run.trainer.Trainer.learn", raises(RunFailure("a rank was lost")), 1),
    ],
)
def test_a_finished_run_stays_finished_without_a_further_step(
    finished, monkeypatch, place, act, code
):
    out, resume = finished
    with monkeypatch.context() as patch:
        patch.setattr(place, act)
        assert resume(steps=2) == code
    assert_finished(out)
    assert resume(steps=2) == 0
    assert [r["step"] for r in metrics(out) if "reward" in r] == [1, 2]


def test_a_further_step_ends_a_finished_state(finished, monkeypatch):
    out, resume = finished
    rollout = rl.run.trainer.Trainer.rollout

    def later(self, step):
        return rollout(self, step) if step == 2 else asked_to_stop()

    monkeypatch.setattr(rl.run.trainer.Trainer, "rollout", later)
    assert resume(steps=3) == 130
    assert status([str(out)]) == 13
    assert json.loads((out / "result.json").read_text())["finished"] is False


# ---- Ctrl-C ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    # Of a run of two steps: test, validation; validation; validation; test.
    ("interrupted", "done", "reported"),
    [
        (1, 0, "stopped before the first step was done"),
        (2, 0, "stopped before the first step was done"),
        (3, 1, "stopped after step 1"),
        (4, 2, "stopped after step 2"),
        (5, 2, "stopped after step 2"),
    ],
)
def test_ctrl_c_stops_an_evaluation_and_a_resumed_run_makes_it(
    words, tmp_path, monkeypatch, capfd, interrupted, done, reported
):
    out, whole = tmp_path / "run", tmp_path / "whole"
    shared = DETERMINISTIC | {"steps": 2, "eval__test_tasks": 6}
    assert main(words(whole, **shared)) == 0
    evaluate = rl.runtime.runtime.Runtime.evaluate
    calls, ended = [], []

    async def interrupting(self, *args):
        calls.append(args)
        if len(calls) == interrupted:
            os.kill(os.getpid(), signal.SIGINT)
        result = await evaluate(self, *args)
        ended.append(args)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(rl.runtime.runtime.Runtime, "evaluate", interrupting)
        assert main(words(out, **shared)) == 130
    assert len(ended) == interrupted - 1 == len(calls) - 1, "it is cut short, and none follows"
    assert last_error(capfd) == f"{reported}; continue with python -m rl.train resume={out}"
    steps = [name for name in names(out) if name.startswith("step-")] if done else []
    assert steps == [f"step-{step:06d}" for step in range(1, done + 1)]

    assert main(words(out, **shared, resume="auto")) == 0
    for checkpoint in ("step-000002", "best"):
        assert_equal_weights(weights(out, checkpoint), weights(whole, checkpoint))
    for key in ("reward", "eval/success", "test/success"):
        found, expected = (
            [(r["step"], r[key]) for r in metrics(o) if key in r] for o in (out, whole)
        )
        assert found == expected


def start_from_nothing(command, **options):
    """As a script starts a command in its background: with Ctrl-C ignored."""
    return subprocess.Popen(
        [sys.executable, *command],
        **options,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )


@pytest.mark.parametrize(
    ("number", "start"),
    [
        (signal.SIGINT, warm_start.start),
        (signal.SIGTERM, warm_start.start),
        (signal.SIGTERM, start_from_nothing),
    ],
)
def test_a_signal_during_the_warm_start_stops_soon(words, tmp_path, plugged, number, start):
    settings = {"model": "tiny", "tiny__steps": 1_000_000, "tiny__demonstrations": 96}
    command = ["-m", "rl.train", *words(tmp_path / "run", **settings)]
    cache = tmp_path / "cache"
    read, write = os.pipe()
    env = plugged | {"TURNWISE_CACHE": str(cache)}
    with os.fdopen(read) as stderr, start(command, env=env, stderr=write) as process:
        os.close(write)
        try:
            lines = [stderr.readline() for _ in range(2)]
            assert lines[1].startswith("model=tiny: 96 demonstrations"), lines
            time.sleep(2)
            assert process.poll() is None
            process.send_signal(number)
            assert process.wait(30) == 130
            assert stderr.read() == "interrupted\n"
        finally:
            process.kill()
    assert read_state(tmp_path / "run").state == "interrupted", "what was open was closed"
    assert list((cache / "tiny").iterdir()) == [], "nothing half-made is left"


def test_a_damaged_configuration_is_one_line(words, tmp_path, capfd):
    out = tmp_path / "run"
    assert main(words(out, steps=1)) == 0
    (out / "config.json").write_text('{"steps": ')
    assert main(words(out, steps=1, resume="auto")) == 1
    assert last_error(capfd).startswith(f"error: {out}/config.json is no configuration of a run (")
