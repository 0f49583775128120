"""A disk that is full: a run ends in one line, and goes on when there is room again."""

from __future__ import annotations

import gc
import gzip
import json
import resource
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rl.rollout.trajectory import Trajectory
from rl.rollout.trajectory_files import read_trajectories
from rl.run.folder import read_jsonl
from rl.train import main

SHARED = {"deterministic": "true", "steps": 3, "save_every": 1, "eval__every": 1, "threads": 1}


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of its own, and how many bytes it may hold from now on."""
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "none", str(folder)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("no file system may be mounted here")

    def resize(size: int) -> None:
        words = ["mount", "-o", f"remount,size={size}", str(folder)]
        subprocess.run(words, check=True, capture_output=True)

    yield folder, resize
    # Weights that were read from there may still be mapped.
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def largest_file():
    """Sets the largest file that this process may write, in bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


def weights(out: Path):
    return load_file(out / "checkpoints" / "step-000003" / "model.safetensors")


@pytest.fixture
def same_as_undisturbed(words, tmp_path):
    """Asserts that a run came to the same end as one that nothing disturbed."""
    whole = tmp_path / "whole"
    assert main(words(whole, **SHARED)) == 0

    def check(out: Path) -> None:
        expected, found = weights(whole), weights(out)
        assert all(torch.equal(expected[name], found[name]) for name in expected)
        assert [r["step"] for r in read_jsonl(out / "metrics.jsonl")] == [0, 1, 2, 3]
        for step in (1, 2, 3):
            name = f"trajectories/step-{step:06d}.jsonl.gz"
            first, second = (read_trajectories(folder / name) for folder in (whole, out))
            assert [t.segments for t in first] == [t.segments for t in second]
        names = (sorted(p.name for p in (f / "checkpoints").iterdir()) for f in (whole, out))
        assert len(set(map(tuple, names))) == 1, "nothing half-made stays"

    return check


def ended_in_one_line(reported: str) -> None:
    lines = reported.splitlines()
    assert [line for line in lines if line.startswith(("error", "Traceback"))] == lines[-1:]
    assert "cannot be" in lines[-1]


def test_a_run_whose_disk_is_full_goes_on_when_there_is_room(
    words, small_disk, same_as_undisturbed, capfd
):
    folder, resize = small_disk
    out = folder / "run"
    command = words(out, **SHARED, resume="auto")
    # Each attempt gets a little further than the one before.
    attempts, size = 0, 3 * 4096
    while True:
        resize(size)
        capfd.readouterr()
        if main(command) == 0:
            break
        ended_in_one_line(capfd.readouterr().err)
        # A file that could not be finished keeps its room until its writer is collected, as
        # it would be with the process of the attempt.
        gc.collect()
        attempts, size = attempts + 1, size + 80 * 1024
        assert attempts < 60
    assert attempts >= 4, "it was full at several places"
    same_as_undisturbed(out)


def test_files_that_may_not_grow_are_a_full_disk_too(
    words, tmp_path, largest_file, same_as_undisturbed, capsys
):
    out = tmp_path / "run"
    command = words(out, **SHARED, resume="auto")
    # Below the sizes of: any file, a configuration, metrics and episodes, the weights.
    for size in (0, 300, 1500, 6000, 20_000):
        capsys.readouterr()  # not to a file, which could not grow either
        largest_file(size)
        assert main(command) == 1
        largest_file(resource.RLIM_INFINITY)
        ended_in_one_line(capsys.readouterr().err)
    assert main(command) == 0
    same_as_undisturbed(out)


def test_half_a_line_of_metrics_and_half_a_file_of_episodes_break_no_resume(
    words, tmp_path, same_as_undisturbed
):
    out = tmp_path / "run"
    assert main(words(out, **SHARED | {"steps": 2})) == 0
    with (out / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"step": 3, "reward": 1.0})[:-4])
    episode = Trajectory(env_id="e", env_options={}, task=0, seed=0, member=0)
    text = gzip.compress(json.dumps(episode.to_json()).encode())
    (out / "trajectories" / "step-000003.jsonl.gz").write_bytes(text[: len(text) // 2])
    (out / "checkpoints" / ".step-000007.tmp").mkdir()
    assert main(words(out, **SHARED, resume="auto")) == 0
    same_as_undisturbed(out)
