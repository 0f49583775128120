"""An environment that blocks in threads."""

from __future__ import annotations

import threading
import time

import pytest

from envs.base import author_calls
from envs.base.deadlines import bounded
from envs.episode import EnvFailure


async def test_a_blocking_author_blocks_no_other_episode_and_has_a_deadline():
    let_go = threading.Event()
    began = time.monotonic()
    answer = author_calls.call(lambda _: let_go.wait(60), 3, True)
    with pytest.raises(EnvFailure, match=r"^slow-v0: a turn waited longer than step_timeout_s"):
        await bounded(answer, "slow-v0", 0.2)
    assert time.monotonic() - began < 30
    let_go.set()
