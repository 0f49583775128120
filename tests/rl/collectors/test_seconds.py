"""Seconds of several processes, as those of one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl.collectors.seconds import with_collectors

STATES = ("generate", "environment", "idle")
AMOUNTS = st.floats(0, 50, allow_nan=False)
REPORTED = st.lists(
    st.dictionaries(
        st.sampled_from([f"time/{lane}/{s}" for lane in ("rollout", "vllm-0") for s in STATES]),
        AMOUNTS,
    ),
    max_size=4,
)


def test_the_busiest_collector_counts_and_all_say_for_what():
    own = {"time/wall": 10.0, "time/rollout/idle": 10.0}
    reported = [
        {"time/wall": 10.0, "time/rollout/generate": 6.0, "time/rollout/idle": 4.0},
        {"time/wall": 10.0, "time/rollout/environment": 2.0, "time/rollout/idle": 8.0},
    ]
    assert with_collectors(own, reported) == {
        "time/wall": 10.0,
        "time/rollout/idle": 4.0,
        "time/rollout/generate": 4.5,
        "time/rollout/environment": 1.5,
    }


def test_own_busy_seconds_stay():
    own = {"time/wall": 10.0, "time/policy/sync": 3.0, "time/policy/idle": 7.0}
    reported = [{"time/policy/generate": 9.0}]
    assert with_collectors(own, reported) == {
        "time/wall": 10.0,
        "time/policy/sync": 3.0,
        "time/policy/idle": 0.0,
        "time/policy/generate": 7.0,
    }


@given(AMOUNTS, AMOUNTS, REPORTED)
def test_the_states_of_a_lane_add_up_to_the_wall_time(idle, busy, reported):
    own = {"time/wall": idle + busy, "time/rollout/idle": idle, "time/rollout/queue": busy}
    own |= {"time/vllm-0/idle": idle, "time/vllm-0/sync": busy}
    made = with_collectors(own, reported)
    for lane in ("rollout", "vllm-0"):
        states = [seconds for key, seconds in made.items() if key.startswith(f"time/{lane}/")]
        assert sum(states) == pytest.approx(made["time/wall"], abs=1e-6)
        assert min(states) >= 0
