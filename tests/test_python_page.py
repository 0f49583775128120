"""docs/python.md: its code blocks run in order and print the documented output."""

from __future__ import annotations

import os
import re
from pathlib import Path

import warm_start

HOME = Path(__file__).resolve().parents[1]
PAGE = (HOME / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_its_code_runs_from_top_to_bottom(tmp_path):
    # A file, because another process cannot import a class from standard input.
    (tmp_path / "page.py").write_text("\n".join(BLOCKS), encoding="utf-8")
    env = os.environ | {"PYTHONPATH": str(HOME), "OMP_NUM_THREADS": "1"}
    done = warm_start.run(["page.py"], cwd=tmp_path, env=env, timeout=600)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.splitlines()
    assert len(printed) == sum(len(re.findall(r"^ *print\(", block, re.M)) for block in BLOCKS)
    assert [printed[2], printed[3]] == ["overlong", re.search(r"# (unknown key.*)$", PAGE, re.M)[1]]


def test_its_table_names_every_function_and_its_settings():
    import rl

    rows = re.findall(
        r"^\| `rl\.(\w+)` \| `rl\.(\w+)` \| `rl\.(\w+)` \| (?:`rl\.(\w+)`)?", PAGE, re.M
    )
    functions = {name for row in rows for name in row[:2]}
    assert functions == {
        name for name in rl._MODULES["rl.api.functions"].split() if name[0].islower()
    }
    for function, awaited, settings, returned in rows:
        for name in (function, awaited):
            known = getattr(rl, name).__annotations__
            assert known["config"] == settings
            assert known["return"] == (returned or "dict[str, Path]")
