"""docs/environments.md: its code runs, its tables are complete."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import envs
from envs.checker import RULES

ROOT = Path(envs.__file__).parents[1]
PAGE = (ROOT / "docs" / "environments.md").read_text(encoding="utf-8")


def test_its_code_runs():
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", "\n".join(blocks)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "CheckReport(env_id='add-v0'" in done.stdout
    assert "2000 m\nconvert: amount: Input should be a valid number" in done.stdout


def test_it_names_every_environment_and_every_rule():
    for name in ("search-qa-v0", "code-sandbox-v0"):
        assert name in envs.ids() and f"| `{name}` |" in PAGE
    for rule in RULES:
        assert f"\n| {rule} | " in PAGE
