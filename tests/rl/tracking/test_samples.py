"""``log.episodes``: the text of a few episodes of each step goes to the trackers."""

from __future__ import annotations

from typing import ClassVar

import pytest
from viewer_runs import episode

import rl.train
from rl.rollout.trajectory import TrajectoryGroup
from rl.run.folder import read_jsonl
from rl.tracking import EpisodeText, Sink
from rl.tracking.samples import LONGEST, episode_texts
from rl.tracking.sink import SINKS, register_sink


class Texts(Sink):
    seen: ClassVar[list[tuple[int, str, object]]] = []

    def open(self, run, id):
        self.seen.clear()
        return "texts"

    def log(self, step, metrics):
        self.seen.extend((step, name, value) for name, value in metrics.items())


@pytest.fixture
def texts(monkeypatch):
    monkeypatch.setattr(SINKS, "_objects", dict(SINKS._objects))
    register_sink("texts", Texts)
    return Texts.seen


@pytest.mark.parametrize("count", [0, 2])
def test_a_run_sends_the_text_of_so_many_episodes_of_each_step(texts, count, words, tmp_path):
    out = tmp_path / "run"
    assert rl.train.main(words(out, log="texts", log__episodes=count, steps=2, prompts=3)) == 0
    sent = [(step, name) for step, name, value in texts if isinstance(value, EpisodeText)]
    assert sent == [(step, f"episodes/{n}") for step in (1, 2) for n in range(1, count + 1)]
    assert (1, "reward") in [(step, name) for step, name, _ in texts]
    assert not any("episodes/1" in record for record in read_jsonl(out / "metrics.jsonl"))


def test_the_first_finished_episode_of_each_group_is_sent_whole():
    failed = episode("q", "a", 0.0, failure="EnvFailure: no answer")
    groups = [
        TrajectoryGroup([failed]),
        TrajectoryGroup([failed, episode("Who is it?", "Bali", 1.0, task=7)]),
        TrajectoryGroup([episode("Where?", "x" * 20_000, 0.0)]),
    ]
    found = episode_texts(groups, 5)
    assert list(found) == ["episodes/1", "episodes/2"]
    assert found["episodes/1"] == (
        "search-qa-v0, task 7, reward 1.000\n\n--- environment\nWho is it?\n\n--- turn 1\nlook\n\n"
        '--- search {"query": "Who is it?"}\nThe friend is Bali.\n\n'
        "--- environment\nThe friend is Bali.\n\n--- turn 2\nBali"
    )
    assert len(found["episodes/2"]) < LONGEST + 50
    assert " characters are left out ..." in found["episodes/2"]
