"""The notebooks run from top to bottom; needs the extra ``docs``."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path

import pytest
import warm_start

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
RUN = """
import sys
import nbformat
from nbclient import NotebookClient

notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=500, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


def test_there_are_two_with_cells_that_fit_a_screen():
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
        assert len(code) >= 5
        assert max(len(text.splitlines()) for text in code) < 20
        for text in code:
            compile(text, str(path), "exec")


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path):
    for name in ("nbclient", "ipykernel"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install -e '.[docs]'")
    own = {
        "PYTHONPATH": str(ROOT),
        "TURNWISE_CACHE": str(tmp_path / "cache"),
        "OMP_NUM_THREADS": "1",
        "QUICK": "1",
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "jupyter"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    done = warm_start.run(
        ["-c", RUN, path, tmp_path / "done.ipynb"], cwd=tmp_path, env=os.environ | own, timeout=600
    )
    assert done.returncode == 0, done.stderr
    cells = json.loads((tmp_path / "done.ipynb").read_text(encoding="utf-8"))["cells"]
    printed = [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]
    assert printed
    assert all(printed)
