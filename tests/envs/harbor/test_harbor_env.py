"""Harbor's tasks in containers: rewards, failures and leftovers. Needs a Docker engine."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import time
from pathlib import Path

import host_image
import pytest
from harbor_tasks import TASKS, write_tasks

import envs
from envs.play import aplay, gold_of
from tools.calls import written

PUBLIC = "TURNWISE_HARBOR_TASKS"
"""Environment variable: a folder of public tasks whose base images the engine has."""


def bash(command: str, **arguments: object) -> str:
    return written("bash", {"command": command, **arguments})


def stop(observation: str) -> str:
    return "I give up."


@pytest.fixture
async def env(docker_client, tasks):
    made = envs.make("harbor", tasks=tasks, split="all")
    yield made
    await made.aclose()


async def gone(containers) -> bool:
    """Whether the engine has removed all containers; removal is asynchronous."""
    deadline = time.monotonic() + 60
    while containers() and time.monotonic() < deadline:
        await asyncio.sleep(0.1)
    return not containers()


@pytest.mark.parametrize("task", [0, 1, 2])
async def test_the_solution_earns_1_and_no_work_earns_0(env, task, containers):
    played = await aplay(env, gold_of(env), seed=0, task=task)
    assert played.reward == 1.0
    assert played.steps[-1].info["scores"]["solved"] == 1.0
    assert (await aplay(env, stop, seed=0, task=task)).reward == 0.0
    assert await gone(containers)


@pytest.mark.slow
async def test_ten_folders_with_their_solutions_earn_1_and_without_work_0(
    docker_client, tmp_path, containers
):
    folder = write_tasks(tmp_path, f"{host_image.NAME}:latest")
    made = envs.make("harbor", tasks=folder, split="all")
    assert [task.name for task in made.tasks] == list(TASKS)

    async def both(task: int) -> tuple[float, float]:
        solved, idle = made.group(2)
        try:
            first = await aplay(solved, gold_of(solved), seed=0, task=task)
            return first.reward, (await aplay(idle, stop, seed=0, task=task)).reward
        finally:
            await solved.aclose()
            await idle.aclose()

    try:
        played = await asyncio.gather(*(both(task) for task in range(len(TASKS))))
    finally:
        await made.aclose()
    assert dict(zip(TASKS, played, strict=True)) == dict.fromkeys(TASKS, (1.0, 0.0))
    assert await gone(containers)


@pytest.mark.slow
def test_check_env_holds_and_the_solution_is_the_gold_policy(docker_client, tasks):
    made = envs.make("harbor", tasks=tasks, split="all")
    try:
        report = envs.check_env(
            made, num_tasks=1, num_gold_tasks=3, num_interleaved=4, num_threads=2, max_rule_s=600
        )
    finally:
        made.close()
    assert (report.skipped, report.num_gold_tasks) == ((), 3)


async def test_the_three_tools_act_in_one_container(env):
    await env.areset(options={"task": 1})
    ran = await env.astep(bash("cd /tmp; NAME=Ada; pwd"))
    assert "/tmp" in ran.observation
    assert "Ada" in (await env.astep(bash('echo "$NAME"'))).observation
    edit = {"path": "/app/greeting.txt", "old_str": "", "new_str": "hello from Ada\n"}
    await env.astep(written("edit", edit))
    assert (
        "hello from Ada" in (await env.astep(written("read", {"path": "greeting.txt"}))).observation
    )
    assert (await env.astep("Done.")).reward == 1.0


async def test_the_tests_are_not_in_the_container_while_the_agent_works(env):
    await env.areset(options={"task": 1})
    seen = await env.astep(bash("ls -d /tests /solution; mkdir -p /tests; echo 1 > /tests/trap"))
    assert seen.observation.count("cannot access") == 2
    forged = await env.astep(bash("echo 1 > /logs/verifier/reward.txt"))
    assert "exit code" not in forged.observation
    assert (await env.astep("Done.")).reward == 0.0


async def test_a_slow_command_is_interrupted_and_the_shell_goes_on(env):
    await env.areset(options={"task": 1})
    slow = await env.astep(bash("echo begun; sleep 600", timeout=2))
    assert "begun" in slow.observation
    assert "interrupted after 2 s" in slow.observation
    assert "still here" in (await env.astep(bash("echo still here"))).observation
    background = await env.astep(bash("sleep 600 & echo started"))
    assert "started" in background.observation


async def test_a_killed_container_is_a_failure(env, docker_client, containers):
    await env.areset(options={"task": 1})
    await env.astep(bash("true"))
    (ident,) = containers()
    docker_client.kill(ident)
    with pytest.raises(envs.EnvFailure, match="container") as failed:
        await env.astep("Done.")
    assert failed.value.retryable
    assert await gone(containers)


async def test_no_command_ends_the_container(env, containers):
    await env.areset(options={"task": 1})
    await env.astep(bash("kill -9 1; kill -TERM 1; kill -9 -1"))
    assert "alive" in (await env.astep(bash("echo alive"))).observation
    assert (await env.astep("Done.")).reward == 0.0


def changed(tasks: Path, tmp_path: Path, **files: str) -> Path:
    """A copy of the task ``greeting`` with other files; "__" in a name is a slash, "_" a dot."""
    folder = shutil.copytree(tasks / "greeting", tmp_path / "changed")
    for name, text in files.items():
        (folder / name.replace("__", "/").replace("_", ".")).write_text(text)
    return folder


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"tests__test_sh": "#!/bin/bash\nexit 3\n"}, "wrote no reward"),
        ({"tests__test_sh": "#!/bin/bash\necho x > /logs/verifier/reward.txt\n"}, "no reward"),
        ({"tests__test_sh": "#!/bin/bash\necho 7 > /logs/verifier/reward.txt\n"}, "outside"),
        ({"environment__Dockerfile": "FROM turnwise-test-host\nRUN exit 9\n"}, "build of"),
        ({"environment__Dockerfile": "FROM turnwise-no-such-image\n"}, "build of"),
        (
            {
                "tests__test_sh": "#!/bin/bash\nsleep 600\n",
                "task_toml": "[verifier]\ntimeout_sec = 2\n[environment]\nmemory_mb = 256\n",
            },
            "took longer than verifier.timeout_sec",
        ),
        (
            {"task_toml": "[environment]\ndocker_image = 'turnwise-no-such-image:1'\n"},
            "has no image",
        ),
        (
            {
                "task_toml": "[environment.healthcheck]\ncommand = 'false'\nretries = 1\n",
            },
            "health check failed",
        ),
    ],
)
async def test_a_broken_task_is_a_failure_and_no_reward(
    docker_client, tasks, tmp_path, files, why, containers
):
    env = envs.make("harbor", tasks=changed(tasks, tmp_path, **files), split="all")
    try:
        await env.areset(options={"task": 0})
        with pytest.raises(envs.EnvFailure, match=why):
            await env.astep("Done.")
    finally:
        await env.aclose()
    assert await gone(containers)


async def test_an_episode_after_a_failed_start_starts_its_own_container(
    docker_client, tasks, tmp_path
):
    broken = changed(tasks, tmp_path, environment__Dockerfile="FROM turnwise-no-such-image\n")
    shutil.move(broken, tmp_path / "tasks" / "a-broken")
    shutil.copytree(tasks / "greeting", tmp_path / "tasks" / "b-greeting")
    env = envs.make("harbor", tasks=tmp_path / "tasks", split="all")
    try:
        await env.areset(options={"task": 0})
        with pytest.raises(envs.EnvFailure, match="build of"):
            await env.astep(bash("true"))
        assert (await aplay(env, gold_of(env), seed=0, task=1)).reward == 1.0
    finally:
        await env.aclose()


async def test_the_agents_time_for_commands_ends_its_work(docker_client, tasks, tmp_path):
    toml = "[agent]\ntimeout_sec = 2\n[environment]\nmemory_mb = 256\nnetwork_mode='no-network'\n"
    env = envs.make("harbor", tasks=changed(tasks, tmp_path, task_toml=toml), split="all")
    try:
        await env.areset(options={"task": 0})
        first = await env.astep(bash("echo 'hello from Ada' > greeting.txt; sleep 600"))
        assert "interrupted" in first.observation
        last = await env.astep(bash("echo spoiled > greeting.txt"))
        assert last.terminated
        assert last.reward == 1.0
    finally:
        await env.aclose()


async def test_killed_at_random_many_episodes_leave_nothing_and_earn_nothing(
    env, docker_client, containers
):
    rng, count = random.Random(0), 16
    members = env.group(count)
    over = asyncio.Event()

    async def killer() -> None:
        while not over.is_set():
            for ident in containers():
                if rng.random() < 0.2:
                    await asyncio.to_thread(_kill, docker_client, ident)
            await asyncio.sleep(0.2)

    killing = asyncio.create_task(killer())
    try:
        played = await asyncio.gather(
            *(aplay(one, gold_of(one), seed=0, task=1) for one in members), return_exceptions=True
        )
    finally:
        over.set()
        await killing
        for one in members:
            await one.aclose()
    for one in played:
        if isinstance(one, BaseException):
            assert isinstance(one, envs.EnvFailure), one
        else:
            assert one.reward == 1.0
    await env.aclose()
    assert await gone(containers)


def _kill(client, ident: str) -> None:
    import docker.errors

    try:
        client.kill(ident)
    except docker.errors.APIError:
        return  # it has ended already


async def test_public_tasks_run_unchanged(docker_client):
    folder = os.environ.get(PUBLIC)
    if not folder:
        pytest.skip(f"{PUBLIC} names no folder of public tasks")
    for name in os.environ.get(f"{PUBLIC}_BASES", "").split(","):
        if name:
            docker_client.tag(host_image.ensure(docker_client), *name.rsplit(":", 1))
    env = envs.make("harbor", tasks=folder, split="all", max_turns=60)
    try:
        for index, task in enumerate(env.tasks):
            solved = await aplay(env, gold_of(env), seed=0, task=index)
            empty = await aplay(env, stop, seed=0, task=index)
            assert (task.name, solved.reward, empty.reward) == (task.name, 1.0, 0.0)
    finally:
        await env.aclose()
