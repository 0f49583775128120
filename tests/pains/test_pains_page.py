"""docs/pains.md names each test and each measured result, and each test names a complaint."""

from __future__ import annotations

import json
import re
from pathlib import Path

from benchmarks.pains import PEERS, RESULTS, table

HERE = Path(__file__).parent
PAGE = (HERE.parents[1] / "docs" / "pains.md").read_text(encoding="utf-8")
ROWS = [line.strip("| ").split(" | ") for line in PAGE.splitlines() if re.match(r"\| \d+\. ", line)]


def test_every_row_names_a_test_that_exists_and_every_test_has_a_row():
    numbers = [int(row[0].split(".")[0]) for row in ROWS]
    assert numbers == list(range(1, 17))
    named = [re.fullmatch(r"`(test_\w+\.py)`", row[-1])[1] for row in ROWS]
    written = {path.name for path in HERE.glob("test_*.py")} - {Path(__file__).name}
    assert set(named) == written
    assert len(named) == len(written)
    for number, name in zip(numbers, named, strict=True):
        text = (HERE / name).read_text(encoding="utf-8")
        assert text.startswith(f'"""Complaint {number}: ')
        assert "def test_" in text


def test_a_row_and_its_test_name_the_same_reports():
    for row in ROWS:
        text = (HERE / re.search(r"test_\w+\.py", row[-1])[0]).read_text(encoding="utf-8")
        docstring = text.split('"""')[1]
        assert re.findall(r"#\d+", row[1]) == re.findall(r"#\d+", docstring), row[0]


def test_the_table_of_peers_is_the_measured_one():
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    assert PAGE.endswith(f"\n\n{table(results)}")
    verdicts = {found["verdict"] for found in results["findings"]}
    assert verdicts <= {"suffers", "does not", "could not be run"}
    assert {found["peer"] for found in results["findings"]} == set(PEERS)


def test_every_peer_has_a_script_with_its_name():
    folder = HERE.parents[1] / "benchmarks" / "peers"
    for peer, (script, *_) in PEERS.items():
        assert f'main("{peer}")' in (folder / script).read_text(encoding="utf-8")
