"""The seconds of a real run: each lane's parts add up to the time between two lines."""

from __future__ import annotations

import time

import pytest

from rl.run.folder import read_jsonl
from rl.tracking.json_lines import JsonLines
from rl.train import main


@pytest.mark.parametrize("staleness", [0, 2])
def test_the_parts_of_each_lane_add_up_to_the_wall_time(words, tmp_path, monkeypatch, staleness):
    logged = []
    log = JsonLines.log

    def timed(self, step, metrics):
        logged.append((step, time.perf_counter()))
        log(self, step, metrics)

    monkeypatch.setattr(JsonLines, "log", timed)
    out = tmp_path / "run"
    assert main(words(out, steps=6, staleness=staleness, eval__every=3, save_every=2)) == 0
    steps = [r for r in read_jsonl(out / "metrics.jsonl") if "time/wall" in r]
    assert [r["step"] for r in steps] == [1, 2, 3, 4, 5, 6]
    at = {step: moment for step, moment in logged if step}
    between = at[6] - at[1]
    for lane in ("rollout", "learner", "policy"):
        total = 0.0
        for record in steps:
            parts = {k: v for k, v in record.items() if k.startswith(f"time/{lane}/")}
            assert min(parts.values()) >= 0
            assert sum(parts.values()) == pytest.approx(record["time/wall"], rel=1e-6)
            total += sum(parts.values()) * (record["step"] > 1)
        # By a clock of the test's own.
        assert total == pytest.approx(between, rel=0.01, abs=0.005)
    everything = {k for r in steps for k, v in r.items() if k.startswith("time/") and v > 0}
    assert everything >= {
        *("time/rollout/generate", "time/rollout/environment", "time/learner/learn"),
        *("time/learner/sync", "time/learner/validate", "time/learner/save"),
        *("time/policy/generate", "time/policy/sync"),
    }
    if staleness == 0:  # Nothing is played while something is learned.
        assert all(r["time/rollout/idle"] >= 0.9 * r["time/learner/learn"] for r in steps)
    assert (out / "ledger.png").read_bytes().startswith(b"\x89PNG")


BLOCKING = """
import asyncio
import time

import envs


class MyEnv(envs.TextEnv[int, int]):
    def __init__(self, options, services=None):
        super().__init__(options, range(8), services)

    def begin(self, task):
        return str(task % 3)

    {turn}
        {work}
        return envs.finish({{"right": float(action == "1")}})
"""


@pytest.mark.parametrize(
    ("turn", "work", "named"),
    [
        ("def turn(self, action):", "time.sleep(0.15)", True),
        ("async def turn(self, action):", "time.sleep(0.15)", True),
        ("async def turn(self, action):", "await asyncio.sleep(0.15)", False),
    ],
    ids=["plain", "async", "awaits"],
)
@pytest.mark.usefixtures("without_charts")
def test_seconds_in_which_an_environment_holds_the_loop_are_the_environments(
    words, tmp_path, caplog, turn, work, named
):
    (tmp_path / "my_env.py").write_text(BLOCKING.format(turn=turn, work=work))
    settings = {"env": f"{tmp_path}/my_env.py:MyEnv", "steps": 1, "prompts": 4, "group_size": 2}
    assert main(words(tmp_path / "run", eval__tasks=0, **settings)) == 0
    (step,) = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    warnings = [m for m in caplog.messages if "my_env.py:16 in MyEnv.turn held the event lo" in m]
    assert len(warnings) == named
    if named:
        assert step["time/rollout/environment"] > 0.9 * 8 * 0.15
        assert step["time/rollout/generate"] < 0.3 * 8 * 0.15
        assert step["time/policy/generate"] < 0.3 * 8 * 0.15
        assert step["time/policy/held"] > 0.5 * 8 * 0.15
    else:
        assert step["time/learner/sampling"] < 3 * 0.15
        assert step.get("time/policy/held", 0.0) < 0.3 * 8 * 0.15
