"""Pytest hooks that make plain ``pytest`` answer in one to two minutes.

``pytest`` leaves out slow tests. ``pytest --whole`` runs every test, and so does ``pytest`` with a
path, ``-k`` or ``-m``: every test that these select.

A test is slow if it has the marker ``slow`` or ``nightly``, or if ``tests/durations.json`` says
that the test or one of its fixtures takes long. ``pytest --whole --record-durations`` on a quiet
machine writes the file. A test that is not in the file is quick. The marker ``quick`` keeps a slow
test in the quick set: of an area whose tests are all slow, one test has it. A file in which every
test is recorded as slow is not even imported.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

DURATIONS = Path(__file__).resolve().parents[1] / "durations.json"
SLOW_S = 0.1
"""Limit for one test function with all its parameters."""
SLOW_FIXTURE_S = 0.5
"""Limit for one fixture of a wider scope: many tests share its time."""
KEPT_S = 0.05
"""Shorter durations are not recorded."""
WORKERS = 2
"""Processes of a run without a path."""


def key_of_test(nodeid: str) -> str:
    """Name of a test function: file without folders, so that a moved file keeps its durations."""
    return nodeid.split("[")[0].rsplit("/", 1)[-1]


def key_of_fixture(file: str, name: str) -> str:
    """Name of a fixture: the file (of a conftest the folder) that defines it, and its name."""
    return f"{file.rsplit('/', 1)[-1]}::{name}"


def limit_of(key: str) -> float:
    """Seconds from which a test or a fixture is slow."""
    return SLOW_S if key.partition("::")[2].startswith("test_") else SLOW_FIXTURE_S


def has_path(config: pytest.Config) -> bool:
    """Whether the command line names files, folders or tests."""
    return config.args_source is pytest.Config.ArgsSource.ARGS


def leaves_out_slow(config: pytest.Config) -> bool:
    """Whether the command line asks neither for the whole suite nor for a selection of its own."""
    chosen = [config.getoption(name) for name in ("whole", "keyword", "markexpr")]
    return not has_path(config) and not any(chosen)


class SlowTests:
    """Marks slow tests, and deselects them if ``leave_out`` is set."""

    def __init__(self, durations: dict[str, float], leave_out: bool) -> None:
        self.slow = {key for key, seconds in durations.items() if seconds >= limit_of(key)}
        self.leave_out = leave_out

    def has_only_slow_tests(self, file: Path) -> bool:
        """Whether the file's text names tests, and the record says that each is slow.

        A new test is not in the record, so that its file is imported.
        """
        text = file.read_text(encoding="utf-8")
        names = re.findall(r"^(?:async )?def (test_\w+)\(", text, re.MULTILINE)
        if not names or "mark.quick" in text or re.search("^class Test", text, re.MULTILINE):
            return False
        return all(f"{file.name}::{name}" in self.slow for name in names)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out files without a quick test: to import them takes time."""
        if not self.leave_out or not re.fullmatch(r"test_\w+\.py", collection_path.name):
            return None
        return self.has_only_slow_tests(collection_path) or None

    def is_slow(self, item: pytest.Item) -> bool:
        """Whether the test has the marker, is recorded as slow, or needs a slow fixture."""
        if item.get_closest_marker("quick"):
            return False
        marked = any(map(item.get_closest_marker, ("slow", "nightly")))
        if marked or key_of_test(item.nodeid) in self.slow:
            return True
        if not isinstance(item, pytest.Function):
            return False
        definitions = item._fixtureinfo.name2fixturedefs
        return any(
            key_of_fixture(found.baseid or "", name) in self.slow
            for name, every in definitions.items()
            for found in every
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        quick, slow = [], []
        for item in items:
            (slow if self.is_slow(item) else quick).append(item)
        for item in slow:
            item.add_marker("slow")
        if self.leave_out and slow:
            items[:] = quick
            config.hook.pytest_deselected(items=slow)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.leave_out:
            terminalreporter.write_line("Slow tests were left out: pytest --whole runs all tests.")


class DurationRecorder:
    """Measures tests and wide fixtures, and writes their durations at the end of the session."""

    def __init__(self, file: Path, old: dict[str, float]) -> None:
        self.file, self.old = file, old
        self.seconds: dict[str, float] = defaultdict(float)
        self.seen: set[str] = set()
        """Tests with a report, skipped ones included."""
        self.measured: set[str] = set()
        """Tests that ran, and fixtures of ours."""
        self._fixtures: list[tuple[str, float]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[object]:
        started = time.perf_counter()
        try:
            return (yield)
        finally:
            # A fixture without a folder or file is one of a plugin.
            if fixturedef.scope != "function" and fixturedef.baseid:
                key = key_of_fixture(fixturedef.baseid or "", fixturedef.argname)
                self._fixtures.append((key, time.perf_counter() - started))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        try:
            return (yield)
        finally:
            # Reports carry these properties from a worker to the process that writes.
            item.user_properties.append(("wide_fixtures", list(self._fixtures)))
            self._fixtures.clear()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        key = key_of_test(report.nodeid)
        self.seen.add(key)
        if report.when == "teardown" or report.skipped:
            return
        self.seconds[key] += report.duration
        if report.when == "call":
            self.measured.add(key)
        else:
            for fixture, seconds in dict(report.user_properties)["wide_fixtures"]:
                self.seconds[key] -= seconds
                self.seconds[fixture] = max(self.seconds[fixture], seconds)
                self.measured.add(fixture)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput"):
            return
        kept = self.still_valid(has_path(session.config))
        found = {key: round(s, 1) for key, s in self.seconds.items() if s >= KEPT_S}
        self.file.write_text(json.dumps(dict(sorted((kept | found).items())), indent=0) + "\n")

    def still_valid(self, is_part: bool) -> dict[str, float]:
        """Old durations of what this session did not measure and what still exists."""
        return {
            key: seconds
            for key, seconds in self.old.items()
            if key not in self.measured and (is_part or key in self.seen)
        }
