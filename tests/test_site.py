"""The site of the pages builds without a warning; needs the extra ``docs``."""

from __future__ import annotations

import importlib.util
import os
import re
from pathlib import Path

import pytest
import warm_start

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for name in ("sphinx", "myst_parser", "furo"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is not installed: pip install -e '.[docs]'")
    out = tmp_path_factory.mktemp("site")
    own = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = ["-m", "sphinx", "-W", "--keep-going", "-q", "-d", out / "trees", "docs", out / "html"]
    done = warm_start.run(words, cwd=ROOT, env=os.environ | own, timeout=900)
    assert done.returncode == 0, done.stderr
    return out / "html"


@pytest.mark.slow
def test_every_page_is_built_and_in_the_navigation(site: Path):
    start = (site / "index.html").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = page.relative_to(ROOT / "docs").with_suffix(".html").as_posix()
        assert (site / name).is_file()
        assert name == "index.html" or f'href="{name}"' in start, name
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (.+)$", index, re.MULTILINE)
    captions = re.findall(r'class="caption-text">(.*?)<', start)
    assert captions[: len(titles)] == titles


@pytest.mark.slow
def test_the_reference_holds_the_public_names(site: Path):
    import envs
    import rl
    import tools

    public = {"envs": envs.__all__, "tools": tools.__all__, "rl": sorted(rl._HOMES)}
    for package, names in public.items():
        page = (site / "api" / f"{package}.html").read_text(encoding="utf-8")
        missing = [name for name in names if not re.search(rf'id="[\w.]*\b{name}"', page)]
        assert missing == [], package
