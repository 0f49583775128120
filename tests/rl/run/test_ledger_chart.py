"""The ledger's picture: a panel per lane, and what takes no time is not in it."""

from __future__ import annotations

from rl.run.ledger_chart import draw_ledger, lanes_of

RECORDS = [
    {"step": 0, "eval/success": 0.5},
    {
        "step": 1,
        "time/wall": 3.0,
        "time/rollout/generate": 2.0,
        "time/rollout/idle": 1.0,
        "time/rollout/tool": 0.0,
        "time/learner/idle": 2.0,
        "time/learner/learn": 1.0,
    },
    {"step": 2, "time/wall": 1.0, "time/rollout/environment": 1.0, "time/learner/odd": 1.0},
]


def test_lanes_are_those_that_took_time_with_idle_last():
    assert lanes_of(RECORDS) == {
        "rollout": ["environment", "generate", "idle"],
        "learner": ["learn", "odd", "idle"],
    }


def test_every_ledger_can_be_drawn(tmp_path):
    sizes = []
    for name, records in {"full.png": RECORDS, "empty.png": []}.items():
        draw_ledger(records, tmp_path / name, "title")
        content = (tmp_path / name).read_bytes()
        assert content.startswith(b"\x89PNG")
        sizes.append(len(content))
    assert sizes[0] > sizes[1] + 2000, "something is drawn"
