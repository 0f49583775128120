"""Tests of a backend that must start, as in CI, fail if it does not; otherwise they are skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import backends
import pytest

from tools.sandbox.make import BACKENDS

REPOSITORY = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("required", "backend", "ends"),
    [
        ("", "bwrap", pytest.skip.Exception),
        ("", "auto", pytest.skip.Exception),
        ("bwrap,landlock", "docker", pytest.skip.Exception),
        ("bwrap,landlock", "bwrap", pytest.fail.Exception),
        ("bwrap,landlock", "landlock", pytest.fail.Exception),
        ("docker", "auto", pytest.fail.Exception),
    ],
)
def test_a_backend_that_must_start_fails_its_tests(monkeypatch, required, backend, ends):
    monkeypatch.setenv(backends.VARIABLE, required)
    with pytest.raises(ends, match="no module named supervisor"):
        backends.missing(backend, "no module named supervisor")


def test_a_misspelt_backend_is_no_reason_to_skip(monkeypatch):
    monkeypatch.setenv(backends.VARIABLE, "bwrap,landlok")
    with pytest.raises(pytest.fail.Exception, match="names landlok: expected bwrap, docker"):
        backends.missing("docker", "no engine")


def test_ci_names_the_backends_that_the_machine_has_parts_for():
    done = subprocess.run(
        [sys.executable, ".ci/backends"],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), "DOCKER_HOST": "unix:///nowhere"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [name for name in done.stdout.strip().split(",") if name]
    assert set(found) <= set(BACKENDS) - {"docker"}
