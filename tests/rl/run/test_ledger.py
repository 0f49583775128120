"""Seconds by part of the loop."""

from __future__ import annotations

import time

import pytest

from rl.run.ledger import Ledger


def test_parts_are_counted_under_their_names_and_taken_once():
    ledger = Ledger()
    for _ in range(2):
        with ledger.part("sleep"):
            time.sleep(0.02)
    with pytest.raises(KeyError), ledger.part("broken"):
        raise KeyError
    taken = ledger.take()
    assert sorted(taken) == ["time/broken", "time/sleep"]
    assert 0.04 <= taken["time/sleep"] < 2
    assert 0 <= taken["time/broken"] < 0.5
    assert ledger.take() == {}
