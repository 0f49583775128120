"""Links of all pages lead somewhere, and tables and messages of pages agree with the code."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted([*ROOT.glob("*.md"), *DOCS.rglob("*.md"), *(ROOT / ".github").rglob("*.md")])
FENCE = re.compile(r"^( *)(`{3,})[^\n]*\n.*?^\1\2 *$", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
LINK = re.compile(r"\[(?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*\]\(([^)\s]+)\)")


@cache
def prose(path: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors that GitHub gives to a page's headings."""
    seen: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", prose(path), re.MULTILINE):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        names.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(names)


def broken(path: Path) -> list[str]:
    """The relative links of a page that lead nowhere."""
    found = []
    for link in LINK.findall(CODE.sub("", prose(path))):
        name, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", name):
            continue
        target = (path.parent / name).resolve() if name else path
        if not target.exists():
            found.append(f"{path.name}: {link}: no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            found.append(f"{path.name}: {link}: no such heading")
    return found


def test_every_link_of_a_page_leads_somewhere():
    assert len(PAGES) > 30
    links = [link for page in PAGES for link in LINK.findall(prose(page))]
    assert len(links) > 200
    assert [line for page in PAGES for line in broken(page)] == []


def test_broken_links_are_detected(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A `b` (c)\n[a](#a-b-c) [b](#a) [c](none.md) [d](page.md#x) `[e](f.md)`\n")
    assert broken(page) == [
        "page.md: #a: no such heading",
        "page.md: none.md: no such file",
        "page.md: page.md#x: no such heading",
    ]


def test_the_index_lists_existing_pages_once():
    listed = re.findall(r"^- \[.+?\]\((.+?)\)", (DOCS / "index.md").read_text(), re.MULTILINE)
    assert len(listed) == len(set(listed)) > 30
    assert [name for name in listed if not (DOCS / name).is_file()] == []


def test_the_tree_names_existing_files():
    page = (DOCS / "architecture.md").read_text(encoding="utf-8")
    (tree,) = re.findall(r"```\n(tools/ .*?)```", page, re.DOTALL)
    folder = ""
    for line in tree.splitlines():
        for name in re.split(r"\s{2,}", line.strip())[:-1]:
            if not line.startswith(" "):
                folder = name
                assert (ROOT / folder).is_dir(), folder
            else:
                assert (ROOT / folder / name).exists(), folder + name


def strings(tree: ast.AST) -> list[str]:
    """The texts of a module, with a zero character in the place of each inserted value."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (x.value if isinstance(x, ast.Constant) else "\0" for x in node.values)
            found.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(re.sub(r"%[sdg]", "\0", node.value))
    return found


def test_messages_of_the_page_on_troubleshooting_are_those_of_the_code():
    page = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    messages = [line for block in blocks for line in block.splitlines()]
    assert len(messages) > 25
    files = [f for name in ("agents", "envs", "rl", "tools") for f in (ROOT / name).rglob("*.py")]
    code = "\n".join(text for file in files for text in strings(ast.parse(file.read_text())))
    missing = [
        f"{message!r}: {part!r}"
        for message in messages
        for part in message.removeprefix("no gradient: ").split("...")
        if part.strip(" :()") and part not in code
    ]
    assert missing == []


def test_the_page_on_numbers_names_existing_commands_and_results():
    page = (DOCS / "reproduce.md").read_text(encoding="utf-8")
    modules = re.findall(r"`python -m (benchmarks[\w.]*)", page)
    assert len(modules) > 20
    for module in modules:
        path = ROOT / Path(*module.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
    assert len(re.findall(r"\(\.\./benchmarks/results/.*?\.json\)", page)) > 25
