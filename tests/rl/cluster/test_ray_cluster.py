"""A run on a real Ray cluster of this machine."""

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import pytest
from ranked_cases import CASES, episodes, save_models

import rl.dpo
import rl.run.trainer
from agents.torch_thread import TorchThread
from rl.learner.ranks.learner import open_ranks
from rl.learner.seam import Experience, Host, LearnerLost
from rl.run.folder import read_jsonl
from rl.train import main

ray = pytest.importorskip("ray")

from rl.cluster.opening import open_cluster  # noqa: E402
from rl.cluster.ray_cluster import RayCluster  # noqa: E402
from rl.cluster.settings import ClusterChoice, RayConfig  # noqa: E402
from rl.errors import UsageError  # noqa: E402

pytestmark = [
    pytest.mark.slow,
    # Ray leaves its daemons' handles to the end of the process.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

SETTINGS = {"env.max_turns": 2, "threads": 1, "steps": 3, "save_every": 1, "learner.ranks": 2}
RAY = {"cluster": "ray"}
ON_RAY = ClusterChoice("ray", RayConfig())


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def gone(pids):
    """Ray reports an actor's end a little before the process has ended."""
    for _ in range(50):
        if not any(map(is_alive, pids)):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{pids} have not ended")


async def learner_on(cluster, spec, seen):
    host = Host(TorchThread(1), lambda: seen.append(1))
    return await open_ranks(spec, host, 2, 60.0, start=cluster.start_ranks, here=False)


async def test_ranks_on_ray_compute_what_ranks_here_compute(tmp_path):
    """With weights that travel by a file, and by the connection, as from another machine."""
    save_models(tmp_path)
    spec, seen = CASES["grpo"].spec(tmp_path), []
    groups = Experience(episodes(CASES["grpo"]))
    here = await open_ranks(spec, Host(TorchThread(1), lambda: None), 2, 60.0)
    async with open_cluster(ON_RAY, [0, 0], []) as cluster:
        assert isinstance(cluster, RayCluster)
        learner = await learner_on(cluster, spec, seen)
        try:
            assert learner.facts == here.facts
            expected, metrics = await here.update(groups, 1), await learner.update(groups, 1)
            assert metrics == pytest.approx(expected, rel=1e-6, abs=1e-7)
            assert seen, "progress is reported"
            by_file = await (await learner.weights(1)).tensors()
            object.__setattr__(learner.processes.group, "shares_files", False)
            by_connection = await (await learner.weights(1)).tensors()
            theirs = await (await here.weights(1)).tensors()
            assert by_file.keys() == by_connection.keys() == theirs.keys()
            for name, x in theirs.items():
                assert by_file[name].equal(by_connection[name])
                assert by_file[name].allclose(x, atol=1e-6)
            pids = learner.processes.pids
            assert len(set(pids)) == 2 and all(map(is_alive, pids))
        finally:
            await learner.close()
            await here.close()
        await gone(pids)
    assert not ray.is_initialized(), "a run that started Ray ends it"


async def test_a_killed_rank_is_named_and_ends_its_peer(tmp_path):
    save_models(tmp_path)
    async with open_cluster(ON_RAY, [0, 0], []) as cluster:
        learner = await learner_on(cluster, CASES["grpo"].spec(tmp_path), [])
        pids = learner.processes.pids
        try:
            os.kill(pids[1], signal.SIGKILL)
            with pytest.raises(LearnerLost, match=r"^rank 1 of the learner, on [\d.]+, ended"):
                await learner.score([1, 2], 1.0)
        finally:
            await learner.close()
        await gone(pids)
        again = await learner_on(cluster, CASES["grpo"].spec(tmp_path), [])
        assert await again.score([1, 2], 1.0)
        await again.close()


async def test_too_little_room_is_one_line_and_reserves_nothing():
    crowded = ClusterChoice("ray", RayConfig(start_s=3.0))
    with pytest.raises(UsageError) as refused:
        async with open_cluster(crowded, [1, 1], [2]):
            pass
    assert str(refused.value) == (
        f"cluster=ray has no room after 3 s: the run needs 3 CPU, 4 GPU in 3 parts, and "
        f"{max(os.cpu_count(), 4)} CPU, 0 GPU are free; give fewer learner.ranks, "
        "policy.replicas or collectors, or a smaller cluster.rank_cpus or cluster.server_cpus"
    )
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.1:1", r"^cluster\.address \(127\.0\.0\.1:1\): no Ray cluster answers there "),
        ("ray", r"^cluster\.address \(ray\) must be HOST:PORT, auto or empty$"),
        ("host:70000", r"no Ray cluster answers there"),
    ],
)
async def test_a_cluster_that_is_not_there_is_one_line(address, message):
    with pytest.raises(UsageError, match=message):
        async with open_cluster(ClusterChoice("ray", RayConfig(address=address)), [0], []):
            pass


def lines(out):
    return [r for r in read_jsonl(out / "metrics.jsonl") if "reward" in r]


def test_a_run_on_ray_loses_a_rank_and_learns_what_a_run_here_learns(
    words, tmp_path, monkeypatch, capfd
):
    """No actor is left on the cluster, which was there before the run."""
    here, there = tmp_path / "here", tmp_path / "there"
    assert main(words(here, **SETTINGS)) == 0
    rollout, killed = rl.run.trainer.Trainer.rollout, []

    async def killing(self, step):
        groups = await rollout(self, step)
        if step == 2 and not killed:
            killed.append(self.learner.processes.pids[0])
            os.kill(killed[0], signal.SIGKILL)
        return groups

    monkeypatch.setattr(rl.run.trainer.Trainer, "rollout", killing)
    ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
    try:
        assert main(words(there, **SETTINGS, **RAY)) == 0
        assert ray.is_initialized(), "the cluster is not the run's"
        assert asyncio.run(_free_cpus()) == 3
    finally:
        ray.shutdown()
    said = capfd.readouterr().err
    died = "ended: The actor is dead because its worker process has died"
    assert f"{died}; new ranks continue from the newest checkpoint" in said
    assert [r["step"] for r in lines(there)] == [1, 2, 3]
    for mine, theirs in zip(lines(there), lines(here), strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], abs=1e-6)
        assert mine["reward"] == theirs["reward"]


async def _free_cpus():
    for _ in range(50):
        free = ray.available_resources().get("CPU", 0)
        if free == 3:
            break
        await asyncio.sleep(0.2)
    return free


@pytest.mark.nightly
def test_preferences_are_learned_by_ranks_on_ray(toy_model, tmp_path, capfd):
    """As by one process here; the command starts Ray and ends it."""
    data = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"0{i % 3}", "chosen": str(i % 3), "rejected": "1"} for i in (0, 2, 3, 5)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = [f"model={toy_model}", f"data={data}", "steps=2", "held_out=0.5", "optimizer.lr=1e-3"]
    results = []
    for name, more in (("here", []), ("ray", ["cluster=ray", "learner.ranks=2"])):
        assert rl.dpo.main([*words, f"out={tmp_path / name}", *more]) == 0
        results.append(json.loads(capfd.readouterr().out.splitlines()[-1]))
    here, on_ray = results
    assert on_ray["last_loss"] == pytest.approx(here["last_loss"], rel=1e-5)
    assert on_ray["last_loss"] < on_ray["first_loss"]
    assert (tmp_path / "ray" / "checkpoints" / "last" / "model.safetensors").is_file()
    assert not ray.is_initialized()


def test_programs_run_on_the_sandbox_servers_that_ray_placed(tmp_path, capfd, monkeypatch, caplog):
    """Also after one of them is killed, which is started again at its address."""
    rollout, killed = rl.run.trainer.Trainer.rollout, []

    def servers():
        found = []
        for entry in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):
                words = entry.read_bytes().split(b"\0")
                if b"tools.sandbox" in words and words[0] == sys.executable.encode():
                    found.append(int(entry.parent.name))
        return found

    async def killing(self, step):
        if step == 2:
            killed.extend(servers())
            os.kill(killed[0], signal.SIGKILL)
        return await rollout(self, step)

    monkeypatch.setattr(rl.run.trainer.Trainer, "rollout", killing)
    given = {"env": "code-sandbox", "out": tmp_path / "run", "cluster": "ray", "steps": 3}
    given |= {"cluster.sandboxes": 2, "tiny.steps": 150, "tiny.demonstrations": 300, "prompts": 4}
    given |= {"group_size": 2, "eval.tasks": 4, "eval.test_tasks": 0, "threads": 1}
    assert main([f"{key}={value}" for key, value in given.items()]) == 0
    assert len(killed) == 2, "each server is placed once"
    assert not servers()
    steps = [r for r in read_jsonl(tmp_path / "run" / "metrics.jsonl") if "loss" in r]
    assert [r["step"] for r in steps] == [1, 2, 3]
    assert sum(r["sandbox/runs"] for r in steps) > 0
    assert all(r["sandbox/runs"] >= 0 for r in steps)
    assert all(r["failed_episodes"] == 0 for r in steps)
    assert (
        json.loads((tmp_path / "run" / "config.json").read_text())["env"]["options"]["sandbox"]
        == "auto"
    )
    assert "TURNWISE_SANDBOX_TOKEN" not in os.environ


def test_an_environment_without_programs_has_no_sandbox_servers(tmp_path, capfd):
    words = ["env=search-qa", "cluster=ray", "cluster.sandboxes=1", f"out={tmp_path / 'run'}"]
    assert main(words) == 1
    line = capfd.readouterr().err.splitlines()[-1]
    assert line.startswith("error: cluster.sandboxes must be 0 with env=search-qa-v0: it has no")
