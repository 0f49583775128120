"""Ranks and servers on a machine that shares neither memory nor network with the run's."""

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from ranked_cases import CASES, episodes, save_models

import rl.run.trainer
from agents.serving import ServerProcess, WeightFolders
from agents.torch_thread import TorchThread
from benchmarks.serving.far_machine import THERE, FarMachine, can_be_made, until
from rl.errors import RunFailure
from rl.learner.ranks.learner import open_ranks
from rl.learner.seam import Experience, Host
from rl.replay import ReplayConfig, replay
from rl.run.folder import read_jsonl
from rl.train import main

ray = pytest.importorskip("ray")

from rl.cluster.deltas import delta_of  # noqa: E402
from rl.cluster.opening import open_cluster  # noqa: E402
from rl.cluster.settings import ClusterChoice, RayConfig  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def far(tmp_path_factory):
    if not can_be_made():
        pytest.skip("network namespaces need root, and the programs ip and unshare")
    with (
        pytest.MonkeyPatch.context() as patched,
        FarMachine(tmp_path_factory.mktemp("far"), cpus=4, lost_soon=True) as machine,
    ):
        for name, value in machine.environment.items():
            patched.setenv(name, value)
        yield machine


class Pages(ServerProcess):
    """A server of Python's own pages."""

    engine = "pages"

    def command(self):
        return [sys.executable, "-m", "http.server", "--bind", self.host, str(self.port)]

    def client(self, session, *, short_s, load_s):
        raise NotImplementedError


async def test_ranks_there_compute_what_ranks_here_compute(far, tmp_path):
    save_models(tmp_path)
    spec, groups = CASES["grpo"].spec(tmp_path), Experience(episodes(CASES["grpo"]))
    here = await open_ranks(spec, Host(TorchThread(1), lambda: None), 2, 60.0)
    choice = ClusterChoice("ray", RayConfig(address=far.address))
    async with open_cluster(choice, [0, 0], []) as cluster:
        host = Host(TorchThread(1), lambda: None)
        learner = await open_ranks(spec, host, 2, 60.0, start=cluster.start_ranks, here=False)
        try:
            group = learner.processes.group
            assert [rank.joined.address for rank in group.ranks] == [THERE] * 2
            assert not group.shares_files
            expected = await here.update(groups, 1)
            assert await learner.update(groups, 1) == pytest.approx(expected, rel=1e-6, abs=1e-7)
            found = await (await learner.weights(1)).tensors(complete=True)
            await learner.save(tmp_path / "shared")
            unseen = f"/dev/shm/{tmp_path.name}/checkpoint"
            with pytest.raises(RunFailure, match=f"the checkpoint {unseen} is not seen here"):
                await learner.save(Path(unseen))
            for name, x in (await (await here.weights(1)).tensors(complete=True)).items():
                assert found[name].allclose(x, atol=1e-6)
        finally:
            await learner.close()
            await here.close()


async def test_a_server_there_gets_the_newest_weights_whenever_it_starts(far, tmp_path):
    """Its machine keeps two versions, as this one does."""
    choice = ClusterChoice("ray", RayConfig(address=far.address))
    async with open_cluster(choice, [], [0, 0]) as cluster:
        publisher = cluster.publisher(WeightFolders())
        servers = [cluster.server(n, Pages()) for n in range(2)]
        try:
            await servers[0].start()
            assert servers[0].running
            weights = {"w": torch.arange(4.0)}
            folders = [await asyncio.to_thread(publisher.write, weights, v) for v in (1, 2, 3)]
            assert [folder.exists() for folder in folders] == [False, True, True]
            await servers[1].start()
            for server in servers:
                sees = [await server._actor.sees.remote(str(folder)) for folder in folders]
                assert sees == [False, True, True]
                assert server._process.url.startswith(f"http://{THERE}:")
        finally:
            for server in servers:
                await server.stop()
            publisher.close()
        assert not any(server.running for server in servers)
        # Ray ends the actors by force; what guards them stays to clean up.
        until(lambda: not far.shared_memory("turnwise-weights-*"), within_s=20)


async def test_a_machine_there_gets_what_has_changed(far, tmp_path):
    """Without the former version it gets everything; the files are equal bit by bit."""
    choice = ClusterChoice("ray", RayConfig(address=far.address, deltas=True))
    async with open_cluster(choice, [], [0]) as cluster:
        publisher = cluster.publisher(WeightFolders())
        server = cluster.server(0, Pages())
        x = torch.randn(10_000, generator=torch.Generator().manual_seed(0)).bfloat16()

        async def there(folder):
            sent = []
            for path in sorted(folder.iterdir()):
                content = ray.put(delta_of(path.read_bytes(), path.read_bytes()))
                former, again = str(folder), f"{folder.parent}/again"
                sent.append(await server._actor.keep.remote(again, former, [path.name], content))
            return all(sent)

        try:
            await server.start()
            first = await asyncio.to_thread(publisher.write, {"w": x}, 1)
            assert publisher.sent_bytes > 20_000, "there is no former version"
            assert await there(first), "a delta of nothing applies to equal bytes only"
            x[::100] += 1
            second = await asyncio.to_thread(publisher.write, {"w": x}, 2)
            assert publisher.sent_bytes == 4 * 100
            assert await there(second)
            # What is there differs from the former version: it gets the whole file.
            [file] = second.iterdir()
            await server._actor.keep.remote(str(second), "", [file.name], ray.put(b"other"))
            x[:50] -= 1
            third = await asyncio.to_thread(publisher.write, {"w": x}, 3)
            assert publisher.sent_bytes > 20_000
            assert await there(third)
        finally:
            await server.stop()
            publisher.close()


def test_a_run_outlives_its_machines_loss(far, words, tmp_path, monkeypatch, capfd):
    """The machine of all ranks is cut off, comes back, and Ray starts there again."""
    rollout, cut = rl.run.trainer.Trainer.rollout, []

    def restore():
        far.heal()
        far.restart()

    async def cutting(self, step):
        groups = await rollout(self, step)
        if step == 3 and not cut:
            cut.append(threading.Timer(40.0, restore))
            far.cut()
            cut[0].start()
        return groups

    monkeypatch.setattr(rl.run.trainer.Trainer, "rollout", cutting)
    settings = {"env.max_turns": 2, "threads": 1, "steps": 4, "save_every": 1, "learner.ranks": 2}
    there = {"cluster": "ray", "cluster.address": far.address, "learner.timeout_s": 10}
    assert main(words(tmp_path / "run", **settings, **there)) == 0
    cut[0].join()
    said = capfd.readouterr().err
    assert "the learner's ranks made no progress with update for 10 s (learner.timeout_s)" in said
    steps = [r for r in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "loss" in r]
    assert [r["step"] for r in steps] == [1, 2, 3, 4], "each step is learned once"
    monkeypatch.setattr(rl.run.trainer.Trainer, "rollout", rollout)
    assert main(words(tmp_path / "here", **settings)) == 0
    alone = [r for r in read_jsonl(tmp_path / "here" / "metrics.jsonl") if "loss" in r]
    assert [r["loss"] for r in steps] == pytest.approx([r["loss"] for r in alone], abs=1e-6)


def test_a_killed_run_leaves_nothing_there_and_continues(far, words, plugged, tmp_path):
    """SIGKILL ends the run's process, which can close nothing."""
    settings = {"env.max_turns": 2, "threads": 1, "steps": 4, "save_every": 1, "learner.ranks": 2}
    assert main(words(tmp_path / "here", **settings)) == 0
    there = {"cluster": "ray", "cluster.address": far.address, "resume": "auto"}
    command = [sys.executable, "-m", "rl.train", *words(tmp_path / "run", **settings, **there)]

    def steps():
        path = tmp_path / "run" / "metrics.jsonl"
        return [r for r in read_jsonl(path) if "loss" in r] if path.exists() else []

    environment = dict(plugged) | far.environment
    with subprocess.Popen(command, env=environment) as killed:
        until(lambda: len(steps()) >= 2 or killed.poll() is not None, within_s=240)
        assert len(far.running("RankActor")) == 2
        killed.kill()
    assert len(steps()) < 4
    until(lambda: not far.running("RankActor"), within_s=30)
    again = subprocess.run(command, env=environment, check=False, timeout=200)
    assert again.returncode == 0
    alone = [r for r in read_jsonl(tmp_path / "here" / "metrics.jsonl") if "loss" in r]
    assert [r["step"] for r in steps()] == [1, 2, 3, 4], "each step is learned once"
    assert [r["loss"] for r in steps()] == pytest.approx([r["loss"] for r in alone], abs=1e-6)


def test_a_run_learns_there_what_it_learns_here(far, words, tmp_path):
    settings = {"env.max_turns": 2, "threads": 1, "steps": 2, "learner.ranks": 2}
    there = {"cluster": "ray", "cluster.address": far.address}
    assert main(words(tmp_path / "here", **settings)) == 0
    assert main(words(tmp_path / "there", **settings, **there)) == 0
    mine, theirs = (
        [r for r in read_jsonl(tmp_path / name / "metrics.jsonl") if "loss" in r]
        for name in ("there", "here")
    )
    assert [r["loss"] for r in mine] == pytest.approx([r["loss"] for r in theirs], abs=1e-6)
    again = asyncio.run(replay(ReplayConfig(run=str(tmp_path / "there"), here=True)))
    assert (again["steps"], again["equal"]) == (2, True)
