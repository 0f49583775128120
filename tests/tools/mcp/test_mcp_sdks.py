"""The same tests by the other major version of the SDK, from a folder of its own.

A command's server does not inherit that folder: it speaks the installed version to this client.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_the_other_major_version_does_as_well(tmp_path):
    other = "mcp>=1.24,<2" if int(version("mcp").split(".")[0]) >= 2 else "mcp>=2,<3"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(tmp_path), other]
    installed = subprocess.run(pip, capture_output=True, text=True, timeout=600, check=False)
    assert installed.returncode == 0, installed.stderr
    found = [path.name for path in tmp_path.glob("mcp-*.dist-info")]
    assert len(found) == 1 and not found[0].startswith(f"mcp-{version('mcp')}")
    tests = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*tests, str(Path(__file__).with_name("test_mcp.py"))],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
