"""Duration, retries and status of tool calls: measured, written beside the episodes, read back."""

from __future__ import annotations

import gzip
import json

import numpy as np
import pytest

import envs
import tools
from envs.episode import EnvToolCall
from rl.errors import UsageError
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn
from rl.rollout.trajectory_files import (
    calls_path,
    read_trajectories,
    remove_trajectories,
    write_trajectories,
)
from tools.syntax import TAGS, Call
from tools.tool import ToolFailure, ToolResult


def episode(*calls):
    """An episode whose turns make ``calls``, a list for each turn."""
    turns = [Turn("a", "o", "stop_token", 0, tool_calls=list(made)) for made in calls]
    return Trajectory("toy-v0", {}, 3, 11, 0, [], turns, terminated=True)


def call(seconds=None, retries=0, status=""):
    return EnvToolCall("bash", {"command": "ls"}, "x", None, 0.0, seconds, retries, status)


EPISODES = [
    episode([call(0.25, 1, "exit 1"), call()], [call(1.5)]),
    episode([]),
    episode([call(status="timeout \ud800")], [call(0.1 + 0.2, 3)]),
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "step-000001.jsonl.gz"


def measures(trajectory):
    return [(c.seconds, c.retries, c.status) for c in trajectory.tool_calls]


def test_measures_are_read_as_written(path):
    write_trajectories(path, [TrajectoryGroup(EPISODES)])
    back = read_trajectories(path)
    assert list(map(measures, back)) == list(map(measures, EPISODES))
    assert measures(back[0]) == [(0.25, 1, "exit 1"), (None, 0, ""), (1.5, 0, "")]
    # Equal but for the times: calls compare without their measures.
    assert back == EPISODES
    assert sorted(p.name for p in path.parent.iterdir()) == [
        "step-000001.calls.npz",
        "step-000001.jsonl.gz",
        "step-000001.npz",
    ]
    remove_trajectories(path)
    assert list(path.parent.iterdir()) == []


def test_earlier_versions_read_the_lines(path):
    write_trajectories(path, [TrajectoryGroup(EPISODES)])
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    # The fields of format 2. Earlier versions refuse a call with other fields.
    fields = {"name", "arguments", "text", "error", "cost"}
    assert {frozenset(c) for line in lines for t in line["turns"] for c in t["tool_calls"]} == {
        frozenset(fields)
    }
    assert {line["format"] for line in lines} == {2}


def test_episodes_of_earlier_versions_have_no_measures(path):
    write_trajectories(path, [TrajectoryGroup(EPISODES)])
    calls_path(path).unlink()
    assert [measures(t) for t in read_trajectories(path)] == [
        [(None, 0, "")] * 3,
        [],
        [(None, 0, "")] * 2,
    ]


def test_measures_with_the_checksum_of_the_tokens_are_read(path):
    write_trajectories(path, [TrajectoryGroup(EPISODES)])
    with np.load(calls_path(path)) as archive:
        columns = {name: archive[name] for name in archive.files if name != "lines"}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        checksum = json.loads(next(file))["tokens"]
    np.savez(calls_path(path), **columns, tokens=np.asarray([checksum]))
    assert list(map(measures, read_trajectories(path))) == list(map(measures, EPISODES))
    np.savez(calls_path(path), **columns, tokens=np.asarray([checksum + 1]))
    with pytest.raises(UsageError, match=r"does not belong to .*: remove step-000001.calls.npz"):
        read_trajectories(path)


def test_no_file_where_nothing_was_measured(path):
    write_trajectories(path, [TrajectoryGroup(EPISODES)])
    write_trajectories(path, [TrajectoryGroup([episode([call()])])])
    assert not calls_path(path).exists()
    assert measures(read_trajectories(path)[0]) == [(None, 0, "")]


def test_measures_of_other_episodes_are_refused(path):
    write_trajectories(path, [TrajectoryGroup(EPISODES)])
    whole = calls_path(path).read_bytes()
    with np.load(calls_path(path)) as archive:
        columns = {name: archive[name] for name in archive.files}
    np.savez(calls_path(path), **columns | {"lines": columns["lines"] + 1})
    with pytest.raises(UsageError, match=r"does not belong to .*: remove step-000001.calls.npz"):
        read_trajectories(path)
    np.savez(calls_path(path), **columns | {"episode": columns["episode"][::-1] * 0})
    with pytest.raises(UsageError, match="episode 0 has 3 tool calls, 5 were measured"):
        read_trajectories(path)
    for damaged in (b"", whole[:40], b"x" * 99):
        calls_path(path).write_bytes(damaged)
        with pytest.raises(UsageError, match=r"step-000001.calls.npz cannot be read: "):
            read_trajectories(path)


class Calling(envs.ToolEnv[int, int]):
    """An environment with tools."""

    def __init__(self, options, services=None):
        super().__init__(options, range(9), services, syntax=TAGS)

    def begin(self, task):
        self.state = task
        return "?"


attempts = {"count": 0}


@tools.tool(retries=2)
async def shaky(word: str) -> ToolResult:
    """Repeat a word at the second attempt.

    Args:
        word: The word.
    """
    attempts["count"] += 1
    if attempts["count"] % 2:
        raise ToolFailure("away", retryable=True)
    return ToolResult(word, status="exit 3")


tools.register("test-shaky", shaky)


async def test_an_environment_measures_its_calls():
    env = Calling(envs.ToolOptions(tools="test-shaky", max_turns=4))
    await env.areset(seed=0)
    _, made = await env.call(Call("shaky", {"word": "hello"}, 0))
    _, unknown = await env.call(Call("other", {}, 0))
    await env.aclose()
    assert (made.text, made.retries, made.status) == ("hello", 1, "exit 3")
    # The wait before the second attempt is at least 0.1 s.
    assert 0.1 <= made.seconds < 60
    assert (unknown.seconds, unknown.retries, unknown.status) == (None, 0, "")
