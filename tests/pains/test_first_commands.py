"""Complaint 13: the first command that a newcomer types is broken.

verl#1581 (NaN in the official example), #2966 (one turn, without a warning); GEM's example names an
environment that does not exist; TRL's needs bf16; verifiers' needs a login.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import socket
from pathlib import Path

import pytest

from rl.train import main

README = Path(__file__).resolve().parents[2] / "README.md"
QUICK = {
    "env.max_turns": 2,
    "steps": 1,
    "prompts": 4,
    "group_size": 2,
    "tiny.demonstrations": 40,
    "tiny.steps": 4,
    "sampling.max_tokens": 24,
    "eval.tasks": 1,
    "eval.test_tasks": 0,
}


@pytest.fixture
def alone(tmp_path, monkeypatch):
    """An empty folder and cache, and no network."""
    connect = socket.socket.connect

    def refuse(self, address):
        if self.family != socket.AF_UNIX:
            raise OSError(f"there is no network to reach {address} by")
        return connect(self, address)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tmp_path


def test_the_readmes_first_command_plays_several_turns_with_finite_numbers(alone):
    shell = re.search(r"```sh\n(.*?)```", README.read_text(), re.DOTALL)
    install, command = shell[1].strip().split(" && ")
    python, _, module, *words = shlex.split(command)
    assert (install, python, module) == ("pip install .", "python", "rl.train")
    assert main([*words, *(f"{key}={value}" for key, value in QUICK.items())]) == 0
    (folder,) = (alone / "runs").iterdir()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    (step,) = (record for record in map(json.loads, lines) if "loss" in record)
    assert all(math.isfinite(value) for value in step.values())
    assert step["num_turns"] > 1, "an environment of several turns is played over several"
