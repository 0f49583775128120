"""The four package names are common ones: whose they are is asked before any is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HOME = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("name", "command"), [("tools", "train"), ("envs", "sft"), ("agents", "eval")]
)
def test_somebody_elses_package_is_refused_by_its_path(tmp_path, name, command):
    foreign = tmp_path / name / "__init__.py"
    foreign.parent.mkdir()
    foreign.write_text("")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{HOME}"}
    done = subprocess.run(
        [sys.executable, "-m", f"rl.{command}", "--help"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"error: package {name!r} resolves to {foreign}, not to turnwise's under {HOME}: "
        f"start elsewhere, or take the other one off PYTHONPATH\n"
    )
