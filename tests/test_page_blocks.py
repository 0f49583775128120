"""Every block of code of the pages is run or read by a test, here or in the file that is named."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import envs
from rl.data.comparisons import read_comparisons
from rl.data.conversations import read_conversations

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
TESTED = {
    "algorithms.md": "tests/rl/credit/shaping/test_shaping_page.py",
    "data.md": "tests/test_page_blocks.py",
    "environments.md": "tests/envs/test_environments_page.py",
    "evaluation.md": "tests/rl/evaluation/test_evaluation_page.py",
    "external-agents.md": "tests/agents/capture/test_capture_page.py",
    "multi-turn-benchmark.md": "tests/benchmarks/test_multi_turn.py",
    "plugins.md": "tests/test_plugins_page.py",
    "preferences.md": "tests/test_page_blocks.py",
    "python.md": "tests/test_python_page.py",
    "roles.md": "tests/rl/policies/test_partner_settings.py",
    "sandbox.md": "tests/tools/sandbox/test_sandbox_make.py",
    "start.md": "tests/test_readme.py",
    "tracking.md": "tests/rl/tracking/test_tracking_page.py",
    "viewer.md": "tests/test_page_blocks.py",
}
"""The test of each page with blocks of Python or JSON. tests/test_commands.py reads commands."""
OTHER = {"", "sh", "toml", "text", "{eval-rst}"}
"""Shell commands, files that are parsed below, messages and drawings, Sphinx's directives."""


def blocks(page: str, kind: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)


def kinds(page: Path) -> set[str]:
    opened = re.findall(r"^```(.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return set(opened[::2])


def test_every_page_with_code_has_its_test():
    for page in DOCS.rglob("*.md"):
        name = page.relative_to(DOCS).as_posix()
        code = kinds(page) - OTHER
        assert code <= {"python", "json"}, name
        if code:
            assert name in TESTED, f"{name} has code that no test runs"
            assert name in (ROOT / TESTED[name]).read_text(encoding="utf-8")


def test_toml_blocks_are_valid():
    texts = [text for page in DOCS.rglob("*.md") for text in blocks(str(page), "toml")]
    assert len(texts) > 5
    for text in texts:
        tomllib.loads(text)


def test_commands_name_existing_modules():
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    ours = re.compile(r"python -m ((?:agents|benchmarks|envs|rl|tools)(?:\.\w+)*)")
    modules = {name for page in pages for name in ours.findall(page.read_text(encoding="utf-8"))}
    assert len(modules) > 40
    for name in modules:
        path = ROOT / Path(*name.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), name


def test_rows_in_python_are_tasks():
    (code,) = blocks("data.md", "python")
    env = eval(code, {"envs": envs})
    assert len(env.tasks) == 1
    assert env.reset(seed=0)[0].startswith("What is 2 + 3?")
    env.close()


def test_the_picture_of_the_page_on_the_viewer_is_drawn():
    (code,) = blocks("viewer.md", "python")
    names: dict = {}
    exec(compile(code, "docs/viewer.md", "exec"), names)
    first, second = names["Coins"].pictures("Toss.", ["heads tails"])
    assert first is None
    ((heads, tails),) = second.rows
    assert [(cell.text, cell.mark) for cell in (heads, tails)] == [("heads", "good"), ("tails", "")]


def test_the_conversation_of_the_page_on_data_is_read(tmp_path):
    (line,) = blocks("data.md", "json")
    path = tmp_path / "conversations.jsonl"
    path.write_text(line, encoding="utf-8")
    (conversation,) = read_conversations(str(path))
    assert [len(exchange.calls) for exchange in conversation.exchanges] == [1, 0]
    assert conversation.exchanges[-1].action == "21 degrees."


def test_the_lines_of_the_page_on_preferences_are_read(tmp_path):
    comparisons, solution = blocks("preferences.md", "json")
    path = tmp_path / "comparisons.jsonl"
    path.write_text(comparisons, encoding="utf-8")
    first, second, third = read_comparisons(str(path))
    assert [len(read.pairs) for read in (first, second, third)] == [1, 1, 2]
    (pair,) = second.pairs
    assert (pair.margin, pair.label) == (0.5, 0.8)
    assert json.loads(solution)["answer"] == 5
