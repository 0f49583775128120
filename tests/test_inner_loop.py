"""Selection of tests by options and durations, in a small project with the suite's settings."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from inner_loop import DURATIONS, SlowTests, key_of_fixture, key_of_test

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import time
import pytest

@pytest.fixture(scope="module")
def model():
    time.sleep(0.3)

@pytest.fixture
def needs_model(model):
    pass

def test_quick(): pass
def test_recorded_as_slow(): pass
@pytest.mark.parametrize("n", [1, 2])
def test_with_parameters(n): time.sleep(0.15)
def test_of_the_model(needs_model): pass
@pytest.mark.slow
def test_marked(): pass
@pytest.mark.quick
def test_kept(): pass
def test_skipped(): pytest.skip("no engine")
"""
SLOW = ("test_one.py::model", "test_one.py::test_kept", "test_one.py::test_recorded_as_slow")
EVERY = {"quick", "recorded_as_slow", "with_parameters", "of_the_model", "marked", "kept"}


@pytest.fixture
def project(tmp_path):
    """A project with this suite's conftest, settings and plug-in, and one file of tests."""
    helpers, suite = tmp_path / "tests" / "helpers", tmp_path / "tests" / "rl"
    helpers.mkdir(parents=True)
    suite.mkdir()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    shutil.copy(ROOT / "tests" / "helpers" / "inner_loop.py", helpers)
    (suite / "test_one.py").write_text(TESTS)
    record(tmp_path, dict.fromkeys(SLOW, 3.0))
    return tmp_path


def record(project: Path, durations: dict[str, float]) -> None:
    (project / "tests" / "durations.json").write_text(json.dumps(durations))


def run(project: Path, *words: str) -> tuple[set[str], str]:
    """The tests that pass, and the output."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-rA", "-p", "no:cacheprovider", *words],
        cwd=project,
        env={**os.environ, "PYTEST_ADDOPTS": ""},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"^PASSED \S+::test_(\w+)", done.stdout, re.MULTILINE)), done.stdout


def test_pytest_leaves_out_marked_and_recorded_tests(project):
    passed, output = run(project)
    assert passed == {"quick", "with_parameters", "kept"}
    assert "Slow tests were left out: pytest --whole runs all tests." in output


def test_a_file_is_imported_only_if_it_may_have_a_quick_test(project):
    marks = project / "imported"
    file = project / "tests" / "rl" / "test_two.py"
    slow = f"open({str(marks)!r}, 'w').close()\n\ndef test_of_minutes(): pass\n"
    file.write_text(slow)
    record(project, dict.fromkeys(SLOW, 3.0) | {"test_two.py::test_of_minutes": 99.0})
    run(project, "-n0")
    assert not marks.exists()
    file.write_text(slow + "async def test_that_is_new(): pass\n")
    assert "that_is_new" in run(project, "-n0")[0]
    file.write_text(slow.replace("def ", "@__import__('pytest').mark.quick\ndef "))
    assert "of_minutes" in run(project, "-n0")[0]


@pytest.mark.parametrize("words", [["--whole"], ["tests/rl"], ["tests/rl/test_one.py"]])
def test_the_whole_suite_and_a_path_include_slow_tests(project, words):
    passed, output = run(project, "-n0", *words)
    assert passed == EVERY
    assert "left out" not in output


def test_a_selection_by_name_or_marker_includes_slow_tests(project):
    assert run(project, "-n0", "-k", "recorded or model")[0] == {"recorded_as_slow", "of_the_model"}
    slow = {"recorded_as_slow", "of_the_model", "marked"}
    assert run(project, "-n0", "-m", "slow")[0] == slow


@pytest.mark.parametrize("workers", ["0", "2"])
def test_recorded_durations_replace_the_old_ones(project, workers):
    old = {"test_one.py::test_gone": 9.0, "test_one.py::test_quick": 9.0}
    record(project, old | {"test_one.py::test_skipped": 7.0})
    run(project, "--whole", "--record-durations", "-n", workers)
    found = json.loads((project / "tests" / "durations.json").read_text())
    # The sum over parameters; the fixture apart from its test; what was skipped as before.
    assert found.pop("test_one.py::test_quick", 0.0) < 9.0, "measured anew"
    assert list(found) == [
        "test_one.py::model",
        "test_one.py::test_skipped",
        "test_one.py::test_with_parameters",
    ]
    assert found["test_one.py::model"] >= 0.3 and found["test_one.py::test_skipped"] == 7.0
    assert found["test_one.py::test_with_parameters"] >= 0.3


def test_a_path_updates_its_own_durations(project):
    record(project, {"test_other.py::test_long": 9.0, "test_one.py::test_quick": 9.0})
    run(project, "tests/rl", "--record-durations")
    found = json.loads((project / "tests" / "durations.json").read_text())
    assert found["test_other.py::test_long"] == 9.0
    assert found.get("test_one.py::test_quick", 0.0) < 9.0


def test_a_fixture_that_many_tests_share_may_take_longer():
    names = {"test_one.py::test_a": 0.3, "test_one.py::test_b": 0.05}
    names |= {"rl::toy_model": 0.4, "test_one.py::model": 0.5}
    assert SlowTests(names, True).slow == {"test_one.py::test_a", "test_one.py::model"}


def test_a_moved_file_keeps_its_durations():
    assert key_of_test("tests/rl/test_one.py::test_quick[1-a/b]") == "test_one.py::test_quick"
    assert key_of_fixture("tests/pains", "toy_model") == "pains::toy_model"


def test_the_recorded_file_is_sorted_and_holds_seconds():
    durations = json.loads(DURATIONS.read_text())
    assert list(durations) == sorted(durations)
    assert all(seconds > 0 for seconds in durations.values())
