"""Harbor's task folders: fields, defaults, and the tasks that cannot be played."""

from __future__ import annotations

import asyncio
import shutil
from types import SimpleNamespace

import pytest

import envs
from envs.harbor.config import TaskConfig, resolved
from envs.harbor.tasks import load_tasks, storage_warning
from envs.harbor.verifier import VerifierFailed, _without, read_rewards
from tools.calls import written


def test_folders_are_tasks_by_their_path(tasks):
    found = load_tasks(str(tasks)).tasks
    assert [task.name for task in found] == ["fix-script", "greeting", "sealed-sum"]
    assert found[1].instruction.startswith("Write the line `hello from NAME`")


def test_fields_have_harbors_defaults_and_older_names():
    config = TaskConfig.model_validate(
        {"version": "1.0", "environment": {"memory": "2G", "allow_internet": False}}
    )
    assert config.schema_version == "1.0"
    assert config.environment.memory_mb == 2048
    assert config.environment.network_mode == "no-network"
    assert config.environment.build_timeout_sec == 600.0
    assert config.verifier.timeout_sec == 600.0
    assert config.agent.timeout_sec is None
    assert not config.verifier.separate


@pytest.mark.parametrize(
    ("verifier", "separate"),
    [
        ({}, False),
        ({"environment": {}}, True),
        ({"environment_mode": "shared"}, False),
        ({"environment_mode": "separate"}, True),
        ({"environment_mode": "separate", "environment": {}}, True),
    ],
)
def test_the_verifiers_mode_follows_from_its_environment(verifier, separate):
    assert TaskConfig.model_validate({"verifier": verifier}).verifier.separate is separate


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        ({"environment": {"os": "windows"}}, "environment.os"),
        ({"environment": {"gpus": 1}}, "environment.gpus"),
        (
            {"environment": {"network_mode": "allowlist", "allowed_hosts": ["pypi.org"]}},
            "environment.allowed_hosts",
        ),
        ({"environment": {"mcp_servers": [{"name": "a"}]}}, "environment.mcp_servers"),
        ({"steps": [{"name": "one"}]}, "steps"),
        ({"agent": {"network_mode": "no-network"}}, "agent.network_mode"),
        ({"artifacts": [{"source": "/a", "service": "db"}]}, "artifacts"),
    ],
)
def test_tasks_that_cannot_be_played_are_refused_by_their_field(table, reason):
    assert TaskConfig.model_validate(table).refusal().startswith(reason)


def test_a_folder_with_a_task_that_cannot_be_played_names_it(tasks, tmp_path):
    folder = shutil.copytree(tasks, tmp_path / "tasks")
    (folder / "greeting" / "tests" / "test.sh").unlink()
    with pytest.raises(ValueError, match=r"1 of 3 tasks cannot be played: greeting: tests/test.sh"):
        envs.make("harbor", tasks=str(folder), split="all")
    left = envs.make("harbor", tasks=str(folder), split="all", only="fix-*, sealed-sum")
    assert len(left.tasks) == 2


def test_a_wrong_field_is_named_with_its_file(tasks, tmp_path):
    folder = shutil.copytree(tasks, tmp_path / "tasks")
    (folder / "greeting" / "task.toml").write_text("[agent]\ntimeout_sec = 'soon'\n")
    with pytest.raises(ValueError, match=r"greeting/task.toml: agent.timeout_sec"):
        load_tasks(str(folder))


def test_a_limit_of_storage_is_not_ignored_in_silence(tasks, tmp_path):
    assert storage_warning(load_tasks(str(tasks)).tasks) == ""
    folder = shutil.copytree(tasks, tmp_path / "tasks")
    (folder / "greeting" / "task.toml").write_text("[environment]\nstorage = '2G'\n")
    line = storage_warning(load_tasks(str(folder)).tasks)
    assert line.startswith("harbor-v0: environment.storage_mb of greeting is not enforced")


def test_folders_may_name_splits(tasks, tmp_path):
    shutil.copytree(tasks / "greeting", tmp_path / "train" / "greeting")
    shutil.copytree(tasks / "fix-script", tmp_path / "test" / "fix-script")
    assert [t.name for t in envs.make("harbor", tasks=tmp_path).tasks] == ["train/greeting"]
    test = envs.make("harbor", tasks=tmp_path, split="test")
    assert [t.name for t in test.tasks] == ["test/fix-script"]
    with pytest.raises(ValueError, match="no task is in split 'validation'"):
        envs.make("harbor", tasks=tmp_path / "test", split="validation")


def test_a_task_reads_only_variables_that_the_user_allows(monkeypatch):
    monkeypatch.setenv("TOKEN", "secret")
    values = {"A": "${TOKEN}", "B": "x${OTHER:-y}"}
    assert resolved(values, frozenset({"TOKEN"}), "task") == {"A": "secret", "B": "xy"}
    with pytest.raises(ValueError, match=r"reads the variable TOKEN, .*host_env=TOKEN"):
        resolved(values, frozenset(), "task")


# The verdicts of Harbor 0.25.0, whose parser and result model read each of these files.
@pytest.mark.parametrize(
    ("table", "text", "found"),
    [
        (b'{"reward": true}', None, {"reward": 1.0}),
        (b'{"reward": false}', b"1", {"reward": 0.0}),
        (b'{"reward": false, "failed": 3}', None, {"reward": 0.0, "failed": 3.0}),
        (b'{"reward": 0.25, "fast": true}', None, {"reward": 0.25, "fast": 1.0}),
        (b'{"reward": 1, "reward": -0.5}', None, {"reward": -0.5}),
        (b'{"reward": 1e-400}', None, {"reward": 0.0}),
        (b'{"score": 0}', b"1", {"reward": 0.0}),  # a single number is the reward
        (b'{"passed": true}', None, {"reward": 1.0}),
        (b'{"Reward": 1}', None, {"reward": 1.0}),
        (None, b" 0.5\n", {"reward": 0.5}),
        (None, b"1_0", {"reward": 10.0}),
        (None, "\u0661".encode(), {"reward": 1.0}),
    ],
)
def test_reward_files_pay_what_harbor_reads(table, text, found):
    assert rewards(table, text) == found


@pytest.mark.parametrize(
    ("table", "text"),
    [
        *(
            (b'{"reward": %s, "failed": 3}' % value, b"1")
            for value in (b'"1"', b'"true"', b"null", b"[1]", b'{"a": 1}', b"NaN", b"1e309", b"01")
        ),
        (b'{"reward": 1, "note": "x"}', None),
        (b'{"reward": 1, "worst": -Infinity}', None),
        (b'{"reward": 1, "none": null}', None),
        (b'{"score": "a", "failed": 2}', None),
        (b'{"reward": 1%s}' % (b"0" * 400), None),  # beyond floats; Harbor keeps the integer
        (b'{"reward": 1, "caf\xe9": 2}', None),
        (b'\xef\xbb\xbf{"reward": 1}', None),
        *((table, b"1") for table in (b"", b" ", b"[1]", b"1", b"true", b"null")),
        (b"{}", b"1"),  # Harbor reads no number from these two
        (b'{"a": 1, "b": 0}', b"1"),
        *((None, text) for text in (b"", b"true", b"nan", b"inf", b"1e309", b"1 2", b"\xff")),
        (None, None),
    ],
)
def test_other_reward_files_are_failures(table, text):
    with pytest.raises(VerifierFailed, match=r"task greeting: the tests wrote no reward to /logs"):
        rewards(table, text)


def rewards(table, text):
    async def read(name):
        return {"reward.json": table, "reward.txt": text}[name]

    task = SimpleNamespace(name="greeting")
    return asyncio.run(read_rewards(task, read, "the tests' output"))


def test_excluded_files_of_an_artifact_are_left_out(tmp_path):
    import io
    import tarfile

    (tmp_path / "kept.txt").write_text("kept")
    (tmp_path / "draft.tmp").write_text("draft")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(tmp_path, "answer")
    with tarfile.open(fileobj=io.BytesIO(_without(buffer.getvalue(), ["*.tmp"]))) as archive:
        assert archive.getnames() == ["answer", "answer/kept.txt"]


def test_without_an_engine_an_episode_fails_and_names_the_fix(tasks, monkeypatch, tmp_path):
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    env = envs.make("harbor", tasks=tasks, split="all")
    observation, _ = env.reset(options={"task": 1})
    assert observation.startswith("Write the line")
    # The second episode fails for the same reason: a failure leaves no half-made episode.
    for _ in range(2):
        with pytest.raises(envs.EnvFailure, match=r"docker: no engine at .*install one"):
            env.step(written("bash", {"command": "ls"}))
        env.reset(options={"task": 1})
    env.close()
