"""Every example is short, runs, and prints what its docstring shows."""

from __future__ import annotations

import ast
import doctest
import os
import re
import textwrap
from pathlib import Path

import pytest
import warm_start

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
QUICK = "with the word ``quick``"


def docstring(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""


def shown(path: Path) -> str:
    """The output in an example's docstring, with ... for what differs from run to run."""
    found = re.search(r"^Prints:\n((?:    .*\n?)+)", docstring(path), re.MULTILINE)
    return textwrap.dedent(found[1]).rstrip("\n") + "\n" if found else ""


def prints(want: str, got: str) -> bool:
    return doctest.OutputChecker().check_output(want, got, doctest.ELLIPSIS)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


def test_there_are_ten_and_each_is_short():
    assert [path.name[:3] for path in EXAMPLES] == [f"{n:02}_" for n in range(1, 11)]
    for path in EXAMPLES:
        assert len(path.read_text(encoding="utf-8").splitlines()) < 80, path.name
        assert f"Run with: python examples/{path.name}" in docstring(path)


def test_the_page_lists_each_of_them():
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \[(\d\d)\]\(\.\./examples/(.*?)\)", page, re.MULTILINE)
    assert rows == [(path.name[:2], path.name) for path in EXAMPLES]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_prints_what_its_docstring_shows(path: Path, cache: Path):
    if "openai" in path.stem:
        pytest.importorskip("openai")
    own = {"PYTHONPATH": str(ROOT), "TURNWISE_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    words = [str(path), *(["quick"] if QUICK in docstring(path) else [])]
    done = warm_start.run(words, cwd=cache, env=os.environ | own, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    want = shown(path)
    assert bool(want) != ("openai" in path.stem)
    assert not want or prints(want + "...\n", done.stdout + "\n"), done.stdout


def test_other_output_is_detected():
    assert prints("a ... c\n", "a b c\n")
    assert not prints("a ... d\n", "a b c\n")
