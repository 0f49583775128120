"""Fixtures that every part of the suite shares."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

# The suite runs in several processes, and each command would otherwise take every core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
HOME = Path(__file__).resolve().parents[1]


def build_wheels(into: Path, *sources: Path) -> None:
    """Build a wheel of each folder, offline, with the setuptools that is here."""
    for needed in ("pip", "setuptools"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"building a wheel here needs {needed}")
    options = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet"]
    words = [sys.executable, "-m", "pip", "wheel", *options, "--disable-pip-version-check"]
    built = subprocess.run(
        [*words, "-w", str(into), *map(str, sources)],
        cwd=into,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stderr


@pytest.fixture(scope="session")
def turnwise_wheel(tmp_path_factory) -> Path:
    """The wheel of these sources."""
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=HOME,
        capture_output=True,
        text=True,
        check=False,
    )
    if tracked.returncode:
        pytest.skip("these sources are no checkout")
    folder = tmp_path_factory.mktemp("turnwise")
    # Built from a copy: the build leaves folders behind.
    for name in filter(None, tracked.stdout.split("\0")):
        if (HOME / name).is_file():
            copy = folder / "source" / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes((HOME / name).read_bytes())
    build_wheels(folder, folder / "source")
    (wheel,) = folder.glob("turnwise-*.whl")
    return wheel


@pytest.fixture(scope="session")
def wheels():
    """Builds wheels of folders into a folder."""
    return build_wheels


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real data in public layouts (HumanEval, MBPP, ...): $TURNWISE_DATA or ../shared/data."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("TURNWISE_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}; set TURNWISE_DATA to run this")
    return folder
