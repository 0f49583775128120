"""docs/evaluation.md: its Python prints what it says, and its keys are those of results."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import re
from pathlib import Path
from statistics import fmean

import pytest

from rl.policies.openai import OpenAIEndpoint

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "evaluation.md").read_text(encoding="utf-8")


def test_its_python_prints_what_it_says():
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/evaluation.md", "exec"), {})
    assert printed.getvalue().splitlines() == re.findall(r"  # (.*)$", code, re.MULTILINE)


def test_its_table_has_the_options_of_the_endpoint():
    section = PAGE.split("## Models behind an API")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `policy.")]
    named = set(re.findall(r"`policy\.(\w+)`", "".join(row.split("|")[1] for row in rows)))
    assert named == {option.name for option in dataclasses.fields(OpenAIEndpoint)}


def test_its_figures_are_the_simulated_ones():
    found = json.loads((ROOT / "benchmarks" / "results" / "evaluation.json").read_text())
    shares = [row["success"] for row in found["coverage"]]
    assert f"{min(shares):.0%} to {max(shares):.0%} of the time" in PAGE
    cells = found["pass@k"]
    assert f"simulated for {len(cells)} kinds of evaluations" in PAGE
    for label, least, most in (("more than 10", 10, 500), ("1 to 10", 1, 10), ("below 1", 0, 1)):
        rarer = [(c["tasks"] * min(c["true"], 1 - c["true"]), c["covered"]) for c in cells]
        covered = [share for expected, share in rarer if least <= expected < most]
        figures = (fmean(covered), min(covered), max(covered))
        row = " | ".join([label, str(len(covered)), *(f"{share:.1%}" for share in figures)])
        assert f"| {row} |" in PAGE
        assert least < 1 or figures[0] == pytest.approx(0.95, abs=0.005)
    paired = json.loads((ROOT / "benchmarks" / "results" / "paired_pass.json").read_text())
    assert f"{paired['evaluations']} evaluations of each kind" in PAGE
    assert f"simulated for {len(paired['cells'])} kinds of evaluations" in PAGE
    for tasks in (20, 50, 150):
        covered = [c["covered"] for c in paired["cells"] if c["tasks"] == tasks]
        figures = (fmean(covered), min(covered), max(covered))
        row = " | ".join([str(tasks), str(len(covered)), *(f"{share:.1%}" for share in figures)])
        assert f"| {row} |" in PAGE
    for row in found["power"]:
        announced, seen = row["announced power"], row["found"]
        assert f"{seen:.0%} (announced {announced:.0%})" in PAGE
        assert announced == pytest.approx(seen, abs=0.07)
