"""Harbor's tasks in the project's own sandbox: what runs there, and what is refused."""

from __future__ import annotations

import asyncio
import io
import re
import shutil
import tarfile
from pathlib import Path

import backends
import pytest
from harbor_tasks import TASKS, write_tasks

import envs
from envs.harbor.host_image import refusal_with_network, refusal_without_network
from envs.harbor.sandboxes import limits_warning
from envs.harbor.tasks import load_tasks
from envs.play import aplay, gold_of
from tools.calls import written
from tools.sandbox import Limits, SandboxUnavailable
from tools.sandbox.make import linked_sandbox

RELEASE = "usr/lib/os-release"


def bash(command: str, **arguments: object) -> str:
    return written("bash", {"command": command, **arguments})


def stop(observation: str) -> str:
    return "I give up."


@pytest.fixture(scope="module")
def works() -> None:
    """Skips where bubblewrap does not start."""

    async def start() -> None:
        async with linked_sandbox({}, Limits()):
            return

    try:
        asyncio.run(start())
    except SandboxUnavailable as error:
        backends.missing("bwrap", str(error))


@pytest.fixture
async def env(works, tmp_path):
    made = envs.make("harbor", tasks=write_tasks(tmp_path), split="all", backend="sandbox")
    yield made
    await made.aclose()


def one(tmp_path: Path, name: str = "sum-numbers") -> Path:
    """The folder of one task."""
    return write_tasks(tmp_path) / name


def refused(folder: Path, **options: object) -> str:
    """Why a task is refused."""
    with pytest.raises(ValueError, match="cannot be played") as error:
        envs.make("harbor", tasks=folder, split="all", backend="sandbox", **options)
    text = str(error.value)
    assert "\n" not in text
    return text.partition("cannot be played: ")[2]


@pytest.mark.slow
async def test_ten_tasks_with_their_solutions_earn_1_and_without_work_0(env):
    assert len(env.tasks) == len(TASKS) == 10
    members = env.group(20)
    try:
        played = await asyncio.gather(
            *(
                aplay(member, gold_of(member) if solved else stop, seed=0, task=task)
                for member, (solved, task) in zip(
                    members, [(s, t) for s in (True, False) for t in range(10)], strict=True
                )
            )
        )
    finally:
        for member in members:
            await member.aclose()
    assert [episode.reward for episode in played] == [1.0] * 10 + [0.0] * 10


async def test_the_agent_works_in_app_with_the_tasks_files_and_variables(works, tmp_path):
    folder = one(tmp_path, "run-program")
    with (folder / "task.toml").open("a") as toml:
        toml.write('env = { GREETING = "hello there" }\n')
    env = envs.make("harbor", tasks=folder, split="all", backend="sandbox")
    try:
        await env.areset(options={"task": 0})
        seen = await env.astep(bash('cd /app && pwd && echo "$GREETING" && bin/answer.sh && ls /'))
        assert "/app\nhello there\n42" in seen.observation
        assert "/app/bin/answer.sh" not in seen.observation
        edit = {"path": "/app/answer.txt", "old_str": "", "new_str": "42\n"}
        await env.astep(written("edit", edit))
        shown = await env.astep(written("read", {"path": "answer.txt"}))
        assert "42" in shown.observation
        assert (await env.astep("Done.")).reward == 1.0
    finally:
        await env.aclose()


async def test_tests_are_hidden_and_no_process_alias_or_reward_of_the_agent_reaches_them(env):
    task = [t.name for t in load_tasks(env.options.tasks, "", refusal_with_network).tasks].index(
        "sum-numbers"
    )
    await env.areset(options={"task": task})
    seen = await env.astep(bash("ls /tests; ls /solution; cat /logs/verifier/*"))
    assert "test.sh" not in seen.observation
    await env.astep(
        bash(
            "mkdir -p /tmp/tests; "
            "echo 'echo 1 > /logs/verifier/reward.txt' > /tmp/tests/test.sh; "
            "echo 1 | tee /logs/verifier/reward.txt /logs/verifier/reward.json; "
            "(while true; do echo 1 > /tmp/logs/verifier/reward.json; done) & "
            "alias cat='echo 42'; echo() { printf 1 > /logs/verifier/reward.txt; }"
        )
    )
    last = await env.astep("Done.")
    assert last.reward == 0.0
    assert last.info["scores"] == {"solved": 0.0}


async def test_an_agent_that_ends_its_workspace_earns_0(env):
    await env.areset(options={"task": 0})
    await env.astep(bash("kill -9 $PPID; kill -9 -1"))
    await env.astep(bash("true"))
    assert (await env.astep("Done.")).reward == 0.0


async def test_the_agents_time_for_commands_ends_its_work(works, tmp_path):
    folder = one(tmp_path)
    toml = (folder / "task.toml").read_text().replace("60.0", "1.0", 1)
    (folder / "task.toml").write_text(toml)
    env = envs.make("harbor", tasks=folder, split="all", backend="sandbox")
    try:
        await env.areset(options={"task": 0})
        first = await env.astep(bash("echo 42 > sum.txt; sleep 60"))
        assert "interrupted" in first.observation
        last = await env.astep(bash("rm sum.txt"))
        assert (last.terminated, last.reward) == (True, 1.0)
    finally:
        await env.aclose()


@pytest.mark.parametrize(
    ("test", "why"),
    [
        ("exit 3", "wrote no reward"),
        ("echo x > /logs/verifier/reward.txt", "no reward"),
        ("sleep 60", r"longer than verifier.timeout_sec \(2 s\)"),
        ("python3 -c 'x = bytearray(1 << 30)'", "wrote no reward|ended their sandbox"),
    ],
)
async def test_broken_tests_are_a_failure_and_no_reward(works, tmp_path, test, why):
    folder = one(tmp_path)
    (folder / "tests" / "test.sh").write_text(f"#!/bin/bash\n{test}\n")
    toml = (folder / "task.toml").read_text()
    head, _, tail = toml.rpartition("60.0")
    (folder / "task.toml").write_text(f"{head}2.0{tail}")
    env = envs.make("harbor", tasks=folder, split="all", backend="sandbox")
    try:
        await env.areset(options={"task": 0})
        with pytest.raises(envs.EnvFailure, match=why):
            await env.astep("Done.")
    finally:
        await env.aclose()


async def test_true_pays_1_and_no_number_of_the_tests_replaces_solved(works, tmp_path):
    folder = one(tmp_path)
    table = '{"reward": true, "solved": 0, "speed": 3}'
    (folder / "tests" / "test.sh").write_text(f"echo '{table}' > /logs/verifier/reward.json\n")
    env = envs.make("harbor", tasks=folder, split="all", backend="sandbox")
    try:
        await env.areset(options={"task": 0})
        last = await env.astep("Done.")
        assert (last.reward, last.info["scores"]) == (1.0, {"solved": 1.0, "speed": 3.0})
    finally:
        await env.aclose()


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('docker_image = "ubuntu:24.04"', r"docker_image \(ubuntu:24.04\) needs a container"),
        ('workdir = "/srv"', r"workdir \(/srv\) must be /app"),
        ('[environment.healthcheck]\ncommand = "true"', "healthcheck: a sandbox starts no service"),
        ('[verifier.environment]\ndocker_image = "x"', "a separate verifier needs a container"),
        ("gpus = 1", "environment.gpus"),
    ],
)
def test_fields_that_a_sandbox_cannot_serve_are_refused(tmp_path, line, why):
    folder = one(tmp_path)
    with (folder / "task.toml").open("a") as toml:
        toml.write(f"{line}\n")
    assert re.search(why, refused(folder))


def test_a_task_with_a_network_is_refused_unless_the_user_takes_the_network_away(tmp_path):
    folder = one(tmp_path)
    toml = (folder / "task.toml").read_text().replace('"no-network"', '"public"')
    (folder / "task.toml").write_text(toml)
    assert "a sandbox has no network: set network=false" in refused(folder)
    made = envs.make("harbor", tasks=folder, split="all", backend="sandbox", network=False)
    assert len(made.tasks) == 1


def exported(path: Path, release: str) -> None:
    """An archive of a system with this file os-release."""
    with tarfile.open(path, "w:gz") as archive:
        entry = tarfile.TarInfo(f"./{RELEASE}")
        entry.size = len(release.encode())
        archive.addfile(entry, io.BytesIO(release.encode()))


@pytest.mark.parametrize(
    ("dockerfile", "why"),
    [
        ("FROM ubuntu:24.04\n", "line 1: the image is not this machine's own: FROM ubuntu:24.04"),
        ("# none\n\nFROM scratch\nRUN true\n", "line 4: a sandbox builds no image: RUN true"),
        ("FROM scratch\nCOPY numbers.txt /srv/\n", "line 2: /srv/ must be below /app"),
        ("FROM scratch\nCOPY numbers.txt ../x\n", "must be below /app"),
        ("FROM scratch\nCOPY none.txt /app/\n", "none.txt is not in the folder environment"),
        ("FROM scratch\nCOPY ../task.toml /app/\n", "is not in the folder environment"),
        ("FROM scratch\nCOPY --chown=1 numbers.txt /app/\n", "a sandbox builds no image"),
        ("FROM scratch\nADD root.tar.gz /\n", "root.tar.gz is no archive of a system"),
        ("", "has no FROM"),
    ],
)
def test_an_image_that_is_not_the_machines_own_is_refused_with_its_line(tmp_path, dockerfile, why):
    folder = one(tmp_path)
    (folder / "environment" / "Dockerfile").write_text(dockerfile)
    assert why in refused(folder)


async def test_an_export_of_this_system_stands_for_the_machine_itself(works, tmp_path):
    folder = one(tmp_path)
    shutil.copytree(folder / "environment", folder / "environment" / "files")
    (folder / "environment" / "Dockerfile").write_text(
        "FROM scratch\nADD root.tar.gz /\nWORKDIR /app\nCOPY files/numbers.txt numbers.txt\n"
    )
    root = folder / "environment" / "root.tar.gz"
    exported(root, "ID=plan9\nVERSION_ID=4\n")
    assert "root.tar.gz holds plan9 4, and this machine is" in refused(folder)
    exported(root, Path("/", RELEASE).read_text())
    env = envs.make("harbor", tasks=folder, split="all", backend="sandbox")
    try:
        await env.areset(options={"task": 0})
        listed = await env.astep(bash("ls"))
        assert "numbers.txt" in listed.observation
        assert "root" not in listed.observation
        assert (await aplay(env, gold_of(env), seed=0, task=0)).reward == 1.0
    finally:
        await env.aclose()


def test_limits_that_are_not_enforced_are_named(tmp_path):
    tasks = load_tasks(str(write_tasks(tmp_path)), "", refusal_with_network).tasks
    line = limits_warning(tasks)
    assert line.startswith("harbor-v0: environment.cpus and storage_mb of add-header and 9 more")


def test_the_reasons_without_a_network_are_the_others(tmp_path):
    (task,) = load_tasks(str(one(tmp_path)), "", refusal_without_network).tasks
    assert refusal_with_network(task) == refusal_without_network(task) == ""


@pytest.mark.nightly
def test_check_env_holds_and_the_solution_is_the_gold_policy(works, tmp_path):
    env = envs.make("harbor", tasks=write_tasks(tmp_path), split="all", backend="sandbox")
    try:
        report = envs.check_env(
            env, num_tasks=1, num_gold_tasks=10, num_interleaved=8, num_threads=4
        )
    finally:
        env.close()
    assert report.skipped == ()
    assert report.num_gold_tasks == 10
