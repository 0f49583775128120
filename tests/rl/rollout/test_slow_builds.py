"""An environment that takes long to build is named, with the fix."""

from __future__ import annotations

import time

import pytest


@pytest.mark.parametrize(
    ("seconds", "warned"), [((0, 0.06, 0.06, 0.06, 0.06), True), ((0.06, 0), False)]
)
def test_slow_environments_are_named_once(
    make_collector, chatter, monkeypatch, caplog, seconds, warned
):
    left, build = list(seconds), chatter.__init__

    def slow(self, *arguments, **named):
        until = time.thread_time() + (left.pop(0) if left else 0)
        while time.thread_time() < until:
            pass
        build(self, *arguments, **named)

    monkeypatch.setattr(chatter, "__init__", slow)
    collector = make_collector()
    made = [collector.make_env() for _ in range(6)]
    assert len(set(map(id, made))) == 6
    said = [record.message.split(" takes 0.")[0] for record in caplog.records]
    assert said == ["toy-chatter-v0"] * warned
