"""Ranks that a real torchrun starts join a run; one is killed, and torchrun starts them again."""

import os
import re
import signal
import socket
import subprocess
import sys

import pytest

import rl.cluster.joined
import rl.run.trainer
from agents.serving.process import free_port
from rl.cluster.opening import open_cluster
from rl.cluster.settings import ClusterChoice, JoinConfig
from rl.errors import UsageError
from rl.run.folder import read_jsonl
from rl.train import main

SETTINGS = {"env.max_turns": 2, "threads": 1, "steps": 3, "save_every": 1, "learner.ranks": 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"listen": "here"}, r"^listen \(here\) must be HOST:PORT$"),
        ({"listen": "127.0.0.1:0"}, r"^listen \(127\.0\.0\.1:0\) must be HOST:PORT$"),
        ({"rank_threads": 0}, r"^rank_threads \(0\) must be above 0$"),
    ],
)
def test_values_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        JoinConfig(**options)


async def test_an_address_that_is_in_use_is_one_line(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        listen = f"127.0.0.1:{other.getsockname()[1]}"
        choice = ClusterChoice("join", JoinConfig(listen=listen, key_file=str(tmp_path / "key")))
        with pytest.raises(UsageError, match=f"cannot wait for ranks at {listen} .* in use"):
            async with open_cluster(choice, [0], []):
                pass
    assert (tmp_path / "key").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("words", "variables", "message"),
    [
        (["host"], {}, "usage: python -m rl.learner.ranks.joining HOST:PORT KEYFILE"),
        (["h:1", "k"], {}, "none of RANK, SLURM_PROCID is set: start ranks by torchrun or srun"),
        (
            ["127.0.0.1:1", "KEY"],
            {"SLURM_PROCID": "3"},
            "rank 3 cannot join the run at 127.0.0.1:1",
        ),
    ],
)
def test_a_rank_that_cannot_join_ends_in_one_line(words, variables, message, tmp_path):
    (tmp_path / "key").write_bytes(b"0123456789abcdef")
    words = [str(tmp_path / "key") if word == "KEY" else word for word in words]
    command = [sys.executable, "-m", "rl.learner.ranks.joining", *words]
    environment = {k: v for k, v in os.environ.items() if k not in ("RANK", "SLURM_PROCID")}
    ended = subprocess.run(
        command, env=environment | variables, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith(message)


@pytest.mark.slow
def test_torchruns_ranks_learn_what_ranks_here_learn(words, tmp_path, monkeypatch, capfd):
    here, there, key = tmp_path / "here", tmp_path / "there", tmp_path / "key"
    assert main(words(here, **SETTINGS)) == 0
    rollout, killed = rl.run.trainer.Trainer.rollout, []

    async def killing(self, step):
        groups = await rollout(self, step)
        if step == 2 and not killed:
            killed.append(self.learner.processes.pids[1])
            os.kill(killed[0], signal.SIGKILL)
        return groups

    monkeypatch.setattr(rl.run.trainer.Trainer, "rollout", killing)
    listen = f"127.0.0.1:{free_port('127.0.0.1')}"
    key.write_bytes(b"0123456789abcdef")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    torchrun += ["--max-restarts", "2", "--master-port", str(free_port("127.0.0.1"))]
    launched = []
    opened = rl.cluster.joined.RankListener

    class Announcing(opened):
        def __init__(self, *args):
            super().__init__(*args)
            if not launched:
                command = [*torchrun, "-m", "rl.learner.ranks.joining", listen, str(key)]
                launched.append(subprocess.Popen(command))

    monkeypatch.setattr("rl.cluster.joined.RankListener", Announcing)
    joined = {"cluster": "join", "cluster.listen": listen, "cluster.key_file": str(key)}
    assert main(words(there, **SETTINGS, **joined, **{"cluster.start_s": 90})) == 0
    assert launched[0].wait(30) == 0, "torchrun ends with the run"
    assert killed
    # torchrun ends the other rank at once, whose end may be seen first.
    ended = r"rank [01] of the learner, on 127\.0\.0\.1, ended; new ranks continue"
    assert re.search(ended, capfd.readouterr().err)
    mine, theirs = (
        [r for r in read_jsonl(out / "metrics.jsonl") if "loss" in r] for out in (there, here)
    )
    assert [r["step"] for r in mine] == [1, 2, 3]
    assert [r["loss"] for r in mine] == pytest.approx([r["loss"] for r in theirs], abs=1e-6)
