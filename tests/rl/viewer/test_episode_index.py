"""The index of episodes: rows, queries, order, changes of files, and damaged files."""

from __future__ import annotations

import gzip
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from viewer_runs import episode, groups_of, write_run, write_step

import rl
from agents.completion import FinishReason
from rl.errors import UsageError
from rl.rollout.trajectory import TrajectoryGroup
from rl.rollout.trajectory_files import read_trajectories
from rl.viewer.episodes.index import EpisodeIndex, Query, database_of


@pytest.fixture
def index(tmp_path):
    made = EpisodeIndex(write_run(tmp_path / "run") / "trajectories", None)
    assert made.update(60.0) == 0
    yield made
    made.close()


def found(index, **query):
    return [(row.file, row.line, row.reward) for row in index.rows(index.find(Query(**query)))]


def test_a_row_holds_the_numbers_of_its_episode(index):
    row = index.row("step-000002", 4)
    assert (row.kind, row.step, row.grp, row.member, row.task) == ("train", 2, 2, 0, 2)
    assert (row.reward, row.outcome, row.ending, row.failure) == (1.0, 1.0, "finished", "")
    assert (row.turns, row.calls, row.call_errors) == (2, 1, 0)
    assert row.sampled == len("look") + len("Bali")
    assert row.tokens == row.sampled + len(row.question) + len("The friend is Bali.")
    assert (row.generate_s, row.env_s) == (1.0, 0.5)
    assert row.advantage == pytest.approx(0.5)
    assert index.row("step-000002", 5).advantage == pytest.approx(-0.5)
    assert row.answer == "Bali"


def test_the_newest_step_comes_first_and_its_episodes_in_their_order(index):
    files = [(file, line) for file, line, _ in found(index)]
    names = ["step-000003", "step-000002", "step-000001"]
    assert files == [(name, line) for name in names for line in range(6)]


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ({"step": "2"}, 6),
        ({"step": "2-3"}, 12),
        ({"low": "0.5"}, 9),
        ({"high": "0.5"}, 9),
        ({"text": "DO NOT know"}, 9),
        ({"text": "question 1 of step 2"}, 2),
        ({"text": "100%_'\";"}, 0),
        ({"text": "Bali\udc80"}, 0),
        ({"kind": "validation"}, 0),
        ({"ending": "finished", "task": "1"}, 6),
    ],
)
def test_queries(index, query, count):
    assert len(found(index, **query)) == count


def test_an_order_by_reward(index):
    rewards = [reward for *_, reward in found(index, sort="reward", order="asc")]
    assert rewards == [0.0] * 9 + [1.0] * 9


@pytest.mark.parametrize(
    "query", [{"step": "x"}, {"sort": "1; DROP TABLE files"}, {"order": "up"}, {"low": "a"}]
)
def test_a_wrong_query_is_refused(index, query):
    with pytest.raises(UsageError):
        index.find(Query(**query))


def test_new_changed_and_removed_files_are_followed(tmp_path):
    run = write_run(tmp_path / "run", steps=1)
    index = EpisodeIndex(run / "trajectories", None)
    index.update(60.0)
    write_step(run, "validation-000001", groups_of(7, tasks=1))
    write_step(run, "step-000001", groups_of(1, tasks=5))
    index.update(60.0)
    assert len(found(index, kind="validation")) == 2
    assert len(found(index, kind="train")) == 10
    for path in (run / "trajectories").glob("step-*"):
        path.unlink()
    index.update(60.0)
    assert len(found(index)) == 2
    assert index.counts()["kind"] == {"validation": 2}
    index.close()


def test_the_index_is_read_again_from_its_file(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    run = write_run(tmp_path / "run")
    database = database_of(run)
    assert database.parent == tmp_path / "cache" / "viewer"
    first = EpisodeIndex(run / "trajectories", database)
    first.update(60.0)
    first.close()
    second = EpisodeIndex(run / "trajectories", database)
    assert second.pending() == []
    assert len(found(second)) == 18
    second.close()


def test_only_the_user_reads_the_index(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    run = write_run(tmp_path / "run")
    index = EpisodeIndex(run / "trajectories", database_of(run))
    index.update(60.0)
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "cache" / "viewer").iterdir()}
    assert modes == {0o600}
    index.close()
    mine = database_of(run)
    monkeypatch.setattr(os, "getuid", lambda: 4321)
    assert database_of(run) is None
    assert database_of(tmp_path) != mine


def test_a_damaged_index_is_made_again(tmp_path):
    run = write_run(tmp_path / "run")
    database = tmp_path / "index.sqlite"
    database.write_bytes(b"damaged" * 1000)
    index = EpisodeIndex(run / "trajectories", database)
    index.update(60.0)
    assert len(found(index)) == 18
    index.close()


def test_a_viewer_lists_the_files_that_another_one_read(tmp_path):
    run = write_run(tmp_path / "run")
    first, second = (
        EpisodeIndex(run / "trajectories", tmp_path / "index.sqlite") for _ in range(2)
    )
    for index in (first, second):
        index.update(60.0)
        assert len(found(index)) == 18
    write_step(run, "step-000004", groups_of(4))
    for index in (first, second):
        index.update(60.0)
        assert len(found(index)) == 24
        index.close()


def test_pages_that_ask_at_once_read_each_file_once(tmp_path, monkeypatch):
    read, whole = [], EpisodeIndex._read

    def count(index, file):
        read.append(file.name)
        time.sleep(0.01)
        whole(index, file)

    monkeypatch.setattr(EpisodeIndex, "_read", count)
    index = EpisodeIndex(write_run(tmp_path / "run") / "trajectories", None)
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(index.update, [60.0] * 4)) == [0] * 4
    assert sorted(read) == ["step-000001", "step-000002", "step-000003"]
    index.close()


def test_a_damaged_file_is_reported_and_the_others_are_listed(tmp_path):
    run = write_run(tmp_path / "run")
    (run / "trajectories" / "step-000002.jsonl.gz").write_bytes(b"no gzip")
    index = EpisodeIndex(run / "trajectories", None)
    index.update(60.0)
    assert len(found(index)) == 12
    (error,) = index.errors()
    assert "gzip" in error
    index.close()


@pytest.mark.parametrize(
    "change",
    [
        {"task": 2**70},
        {"member": {}},
        {"turns": "abc"},
        {"turns": [{}]},
        {"stop_reason": 3},
        {"segments": [None]},
    ],
)
def test_a_line_of_another_form_is_reported_and_the_others_are_listed(tmp_path, change):
    run = write_run(tmp_path / "run", steps=2)
    path = run / "trajectories" / "step-000002.jsonl.gz"
    record = json.loads(gzip.decompress(path.read_bytes()).splitlines()[0])
    path.write_bytes(gzip.compress(json.dumps(record | change).encode()))
    index = EpisodeIndex(run / "trajectories", None)
    assert index.update(60.0) == 0
    assert len(found(index)) == 6
    assert len(index.errors()) == 1
    path.write_bytes(gzip.compress(b"[" * 100_000))
    assert index.update(60.0) == 0
    assert len(index.errors()) == 1
    index.close()


def test_failed_and_cut_episodes_have_their_ending(tmp_path):
    failed = episode("a", "b", 0.0, member=0, terminated=False, failure="EnvFailure: gone")
    cut = episode(
        "a", "b", 0.0, member=1, terminated=False, truncated=True, stop_reason="turn_limit"
    )
    short, long = episode("a", "b", 0.0, member=2), episode("a", "b", 0.0, member=3)
    short.turns[-1].finish_reason = long.turns[0].finish_reason = FinishReason.LENGTH
    members = [failed, cut, short, long]
    write_step(tmp_path, "test-after", [TrajectoryGroup(members)], learner=False)
    index = EpisodeIndex(tmp_path / "trajectories", None)
    index.update(60.0)
    rows = index.rows(index.find(Query(kind="test after")))
    assert [(row.ending, row.failure) for row in rows] == [
        ("failed", "EnvFailure"),
        ("turn_limit", ""),
        ("cut", ""),
        ("finished", ""),
    ]
    assert len(index.find(Query(ending="cut"))) == 1
    assert index.counts()["failure"] == {"EnvFailure": 1}
    index.close()


def test_a_run_gives_its_episodes_as_a_table(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    folder = write_run(tmp_path / "run")
    run = rl.read_run(folder)
    rows = run.episodes()
    read = [
        t for p in sorted(folder.glob("trajectories/step-*.jsonl.gz")) for t in read_trajectories(p)
    ]
    assert [(row.task, row.member, row.reward) for row in rows] == [
        (t.task, t.member, pytest.approx(t.reward)) for t in read
    ]
    assert [row.step for row in rows] == [step for step in (1, 2, 3) for _ in range(6)]
    assert rows[0]._fields[:4] == ("file", "line", "kind", "step")
    damaged = folder / "trajectories" / "step-000002.jsonl.gz"
    damaged.write_bytes(b"damaged")
    with pytest.raises(UsageError, match="step-000002"):
        run.episodes()
