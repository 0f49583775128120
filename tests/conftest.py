"""Fixtures that every part of the suite shares."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real data in public layouts (HumanEval, MBPP, ...): $TURNWISE_DATA or ../shared/data."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("TURNWISE_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}; set TURNWISE_DATA to run this")
    return folder
