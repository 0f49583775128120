"""Options and fixtures of the whole suite."""

from __future__ import annotations

import gc
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from inner_loop import (
    DURATIONS,
    WORKERS,
    DurationRecorder,
    SlowTests,
    has_path,
    leaves_out_slow,
)

# Several processes run the suite; without this each command would use every core.
os.environ.setdefault("OMP_NUM_THREADS", "1")
HOME = Path(__file__).resolve().parents[1]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole", action="store_true", help="run slow tests as well, as CI does")
    parser.addoption(
        "--record-durations",
        action="store_true",
        help="write tests/durations.json, which says what is slow",
    )


def pytest_configure(config: pytest.Config) -> None:
    durations = json.loads(DURATIONS.read_text())
    config.pluginmanager.register(SlowTests(durations, leaves_out_slow(config)))
    if config.getoption("record_durations"):
        config.pluginmanager.register(DurationRecorder(DURATIONS, durations))
    if importlib.util.find_spec("hypothesis") is not None:
        _allow_slow_examples()


def _allow_slow_examples() -> None:
    """Let hypothesis take its time: on a busy machine, each example can take long."""
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "patient", deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("patient")


def pytest_collection_finish() -> None:
    """Keep a million objects of modules and tests out of the collections of garbage.

    Each run in this process begins with a full collection, which would visit them.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Workers for the suite; none for a path, whose tests would wait for the workers to start."""
    return 0 if has_path(config) else WORKERS


def build_wheels(into: Path, *sources: Path) -> None:
    """Build a wheel of each folder, offline, with the installed setuptools."""
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
    """Function that builds wheels of folders into a folder."""
    return build_wheels


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Real data in public layouts (HumanEval, MBPP, ...): $TURNWISE_DATA or ../shared/data."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("TURNWISE_DATA", beside))
    if not folder.is_dir():
        pytest.skip(f"no data at {folder}; set TURNWISE_DATA to run this")
    return folder
