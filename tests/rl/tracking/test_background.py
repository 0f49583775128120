"""A sink's own thread: what it loses, what it repeats, and that the run never waits."""

from __future__ import annotations

import threading
import time

import pytest

from rl.errors import RunFailure, UsageError
from rl.tracking import Ending, RunInfo, Sink, SinkOptions, background
from rl.tracking.background import Background, join_all
from rl.tracking.mark import Mark

LONG_S = 60.0
"""A deadline that nothing here reaches unless it is broken."""


class Scripted(Sink):
    """Does what its test asks for."""

    def __init__(self, timeout_s=LONG_S, on_open=None, on_log=None, rewinds=False):
        super().__init__(SinkOptions(timeout_s=timeout_s))
        self.on_open, self.on_log = on_open or (lambda: None), on_log or (lambda step: None)
        self.rewinds = rewinds
        self.opened, self.records, self.endings = [], [], []

    def open(self, run, id):
        self.on_open()
        self.opened.append((run.step, id))
        return "the-id"

    def log(self, step, metrics):
        self.on_log(step)
        self.records.append((step, dict(metrics)))

    def finish(self, ending):
        self.endings.append(ending)


@pytest.fixture
def feed(tmp_path, monkeypatch):
    """From a sink to its started thread; ``said`` collects what the user is shown."""
    monkeypatch.setattr(background, "PAUSES_S", (0.01,))
    said = []

    def feed(sink, step=0, mark="mark.json"):
        run = RunInfo("train", tmp_path, {}, step)
        started = Background("toy", sink, run, Mark(tmp_path / mark), said.append)
        started.start()
        return started

    feed.said = said
    return feed


def end(behind, limit_s=LONG_S):
    behind.finish(Ending("finished", {"after": 1.0}))
    behind.join(limit_s)


def test_a_sink_gets_every_record_in_order_and_then_the_ending(feed):
    sink = Scripted()
    behind = feed(sink)
    behind.wait_open()
    for step in range(5):
        behind.log(step, {"reward": step / 4})
    end(behind)
    assert sink.opened == [(0, "")]
    assert sink.records == [(step, {"reward": step / 4}) for step in range(5)]
    assert sink.endings == [Ending("finished", {"after": 1.0})]
    assert feed.said == []


def test_a_resumed_run_logs_only_new_metrics(feed):
    first = feed(Scripted())
    for step in range(4):
        first.log(step, {"reward": 0.0})
    end(first)

    sink = Scripted()
    second = feed(sink, step=2)
    second.log(3, {"reward": 1.0, "eval/success": 0.5})
    second.log(4, {"reward": 1.0})
    end(second)
    assert sink.opened == [(2, "the-id")]
    assert sink.records == [(3, {"eval/success": 0.5}), (4, {"reward": 1.0})]
    assert feed.said == ["toy: steps 3 to 3 are already there; they are not logged again"]


def test_a_sink_that_rewinds_gets_the_repeated_steps(feed):
    first = feed(Scripted(rewinds=True))
    for step in range(4):
        first.log(step, {"reward": 0.0})
    end(first)

    sink = Scripted(rewinds=True)
    second = feed(sink, step=2)
    second.log(3, {"reward": 1.0})
    end(second)
    assert sink.records == [(3, {"reward": 1.0})]
    assert feed.said == []


def test_a_lost_network_loses_no_record_and_is_reported_once(feed):
    failures = {2: 3, 4: 1}

    def refuse(step):
        if failures.get(step, 0):
            failures[step] -= 1
            raise ConnectionError("no route\nto host")

    sink = Scripted(on_log=refuse)
    behind = feed(sink)
    for step in range(6):
        behind.log(step, {"reward": step})
    end(behind)
    assert [step for step, _ in sink.records] == list(range(6))
    assert feed.said == [
        "toy: cannot log step 2: ConnectionError: no route to host; it is retried",
        "toy: works again",
    ]


def test_a_sink_that_refuses_to_start_ends_the_command_in_one_line(feed):
    def refuse():
        raise ValueError("no API key")

    with pytest.raises(UsageError) as refused:
        feed(Scripted(on_open=refuse)).wait_open()
    assert str(refused.value) == (
        "log=toy cannot start: ValueError: no API key. Set it up, or leave it out of log=..."
    )


def test_a_sink_that_starts_late_gets_everything_and_a_failed_start_is_tried_again(feed):
    go_on, failures = threading.Event(), [OSError("no network")]

    def wait():
        go_on.wait(LONG_S)
        if failures:
            raise failures.pop()

    sink = Scripted(timeout_s=0.1, on_open=wait)
    behind = feed(sink)
    behind.wait_open()
    behind.log(1, {"reward": 1.0})
    go_on.set()
    end(behind)
    assert sink.records == [(1, {"reward": 1.0})]
    assert feed.said == [
        "toy: not started within 0.1 s; the run continues, and its metrics wait for the sink",
        "toy: cannot start: OSError: no network; it is retried",
        "toy: works again",
    ]


def test_a_sink_that_hangs_neither_holds_the_run_nor_its_end(feed):
    release = threading.Event()
    sink = Scripted(timeout_s=0.2, on_log=lambda step: release.wait(LONG_S))
    behind = feed(sink)
    behind.wait_open()
    began = time.monotonic()
    for step in range(1000):
        behind.log(step, {"reward": step})
    behind.finish(Ending("finished"))
    join_all({"toy": behind}, 0.2)
    assert time.monotonic() - began < LONG_S / 2
    assert feed.said == [
        "toy: not finished within 0.2 s, the run ends without it; "
        "1000 records are only in metrics.jsonl"
    ]
    release.set()


def test_too_many_waiting_records_are_dropped_aloud(feed, monkeypatch):
    monkeypatch.setattr(background, "MAX_WAITING", 3)
    release = threading.Event()
    sink = Scripted(on_log=lambda step: release.wait(LONG_S))
    behind = feed(sink)
    behind.wait_open()
    for step in range(9):
        behind.log(step, {"reward": step})
    release.set()
    end(behind)
    assert [step for step, _ in sink.records][-3:] == [6, 7, 8]
    assert feed.said == ["toy: 3 records wait; the oldest are dropped, and stay in metrics.jsonl"]


def test_a_damaged_mark_names_its_file(tmp_path):
    path = tmp_path / "toy.json"
    path.write_text('{"id": 3')
    with pytest.raises(RunFailure, match=r"toy\.json is no mark of a sink .*delete it"):
        Mark(path)
