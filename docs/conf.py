"""Sphinx's configuration: ``python -m sphinx -W docs site`` builds the pages as a site."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import rl

DOCS = Path(__file__).resolve().parent
HOME = DOCS.parent
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
REPOSITORY = PROJECT.get("urls", {}).get("Repository", "")
LINK = re.compile(r"(?<!!)\[(?P<text>[^\[\]]+)\]\((?P<path>[^)\s:#]+)(?P<anchor>#[^)\s]*)?\)")
LISTED = re.compile(r"^- \[[^\]]+\]\(([^)\s:#]+)\.md\)", re.MULTILINE)
SECTION = re.compile(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)

project = PROJECT["name"]
version = release = PROJECT["version"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"{project} {version}"
highlight_language = "none"
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
# Its names are imported on first access, so autodoc needs their list.
rl.__all__ = sorted(rl._HOMES)


def outside_links(path: Path, text: str) -> str:
    """A page's text in which links that leave docs/ lead to the repository."""

    def lead(link: re.Match[str]) -> str:
        target = (path.parent / link["path"]).resolve()
        if target.is_relative_to(DOCS) or not target.exists():
            return link[0]  # Sphinx warns of a missing page.
        if not REPOSITORY:
            return link["text"]
        place = target.relative_to(HOME).as_posix()
        return f"[{link['text']}]({REPOSITORY}/blob/main/{place}{link['anchor'] or ''})"

    return LINK.sub(lead, text)


def navigation(text: str, pages: set[str]) -> str:
    """The tables of contents of the site: a section of docs/index.md each, then unlisted pages."""
    sections = {title: LISTED.findall(body) for title, body in SECTION.findall(text)}
    listed = {page for names in sections.values() for page in names}
    sections["Other pages"] = sorted(pages - listed - {"index"})
    return "".join(
        f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(names) + "\n```\n"
        for title, names in sections.items()
        if names
    )


def setup(app: Any) -> None:
    """Connect the two changes to the pages' texts."""

    def read(app: Any, name: str, source: list[str]) -> None:
        contents = navigation(source[0], app.env.found_docs) if name == "index" else ""
        source[0] = outside_links(DOCS / f"{name}.md", source[0]) + contents

    app.connect("source-read", read)
