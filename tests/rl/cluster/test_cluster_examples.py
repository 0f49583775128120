"""``examples/clusters``: the commands of each file are valid, and torchrun's file runs."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from agents.serving.process import free_port
from rl.run.folder import read_jsonl
from rl.settings.parsing.command_line import parse
from rl.settings.train import PRESETS, TrainConfig

FOLDER = Path(__file__).resolve().parents[3] / "examples" / "clusters"
COMMAND = re.compile(r"python -m rl\.train ([^&\n]*)")
VARIABLES = {'"$listen"': "10.0.0.1:7717", '"$key"': "join.key", '"$head"': "10.0.0.1:6399"}
VARIABLES |= {"$listen": "10.0.0.1:7717", "$key": "join.key"}


def command(name: str) -> list[str]:
    text = re.sub(r" *\\\n *", " ", (FOLDER / name).read_text(encoding="utf-8"))
    [words] = COMMAND.findall(text)
    for variable, value in VARIABLES.items():
        words = words.replace(variable, value)
    return shlex.split(words)


@pytest.mark.parametrize(
    ("name", "ranks", "cluster"),
    [("torchrun.sh", 4, "join"), ("slurm.sbatch", 8, "join"), ("skypilot.yaml", 4, "ray")],
)
def test_its_command_is_valid(name, ranks, cluster):
    config = parse(TrainConfig, command(name), command="rl.train", presets=PRESETS)
    assert (config.learner.settings.ranks, config.cluster.name) == (ranks, cluster)


@pytest.mark.slow
def test_the_file_of_torchrun_trains_with_its_ranks(tmp_path, toy_model, plugged):
    """With another model, on a CPU, and with two ranks."""
    text = (FOLDER / "torchrun.sh").read_text(encoding="utf-8")
    small = f"env=toy-copy env.max_turns=2 model={toy_model} device=cpu out={tmp_path / 'run'}"
    small += " steps=2 prompts=4 group_size=2 sampling.max_tokens=8 eval.tasks=4 eval.test_tasks=0"
    for old, new in (
        ("env=search-qa model=Qwen/Qwen3-0.6B device=cuda out=runs/ranks", small),
        ("learner.ranks=4", "learner.ranks=2"),
        ("--nproc-per-node 4", f"--nproc-per-node 2 --master-port {free_port('127.0.0.1')}"),
        ("127.0.0.1:7717", f"127.0.0.1:{free_port('127.0.0.1')}"),
        ("~/.cache/turnwise/join.key", str(tmp_path / "key")),
    ):
        assert old in text
        text = text.replace(old, new)
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", text],
        env=os.environ | dict(plugged) | {"PATH": programs},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    steps = [r for r in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "num_groups" in r]
    assert [r["step"] for r in steps] == [1, 2]
