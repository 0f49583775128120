"""The threat model's table of memory has the measured figures."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.sandbox.memory import RESULTS, page_table
from benchmarks.sandbox.memory_kinds import KINDS

PAGE = Path(__file__).resolve().parents[3] / "docs" / "threat-model.md"


def test_the_table_of_memory_has_the_figures_of_the_benchmark():
    assert page_table() in PAGE.read_text()


def test_no_kind_of_memory_exceeds_its_limit_by_more_than_a_quarter():
    found = json.loads(RESULTS.read_text())
    assert set(found) == {"bwrap", "docker", "landlock", "bwrap, user", "landlock, user"}
    for where, kinds in found.items():
        assert set(kinds) == {kind.name for kind in KINDS}, where
        assert all(figure["peak"] <= 1.25 for figure in kinds.values()), where
