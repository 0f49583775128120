"""Every code block of the README runs and prints the documented output."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import warm_start

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
SHELL = [line for kind, text in BLOCKS if kind == "sh" for line in text.splitlines()]
TOML = [text for kind, text in BLOCKS if kind == "toml"]
RUN_FILE = next(text for text in TOML if text.startswith("# run.toml"))
NOT_RUN = ("model=Qwen/", "config=run.toml")
"""The first needs a download; another test checks the second."""


def environment(cache: Path) -> dict[str, str]:
    own = {"PYTHONPATH": str(ROOT), "TURNWISE_CACHE": str(cache), "OMP_NUM_THREADS": "1"}
    return os.environ | own


def run(words: list[str], cwd: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run a command in a process that imports turnwise from the checkout."""
    return subprocess.run(
        words,
        cwd=cwd,
        env=environment(cache),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def run_warm(words: list[str], cwd: Path, cache: Path) -> subprocess.CompletedProcess[str]:
    """Run the words after ``python`` in a process that has imported torch already."""
    return warm_start.run(words, cwd=cwd, env=environment(cache), timeout=600)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the README's commands: later commands read the runs of earlier ones."""
    folder = tmp_path_factory.mktemp("readme")
    (folder / "run.toml").write_text(RUN_FILE)
    (folder / "recipes").symlink_to(ROOT / "recipes")
    return folder


def test_there_are_exactly_two_commands_before_the_ways_of_use() -> None:
    opening = (ROOT / "README.md").read_text().split("## ")[0]
    assert opening.count("```sh") == 2
    assert SHELL[0] == "pip install . && python -m rl.train env=code-sandbox"
    assert SHELL[1] == "pip install -e '.[test]' && pytest"


def test_its_figures_beside_other_systems_are_the_measured_ones() -> None:
    page = (ROOT / "README.md").read_text()

    def result(name: str) -> Any:
        return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())

    ratios = [workload["ratios"]["trl_medians"] for workload in result("learner").values()]
    assert f"takes {min(ratios):.1f} to {max(ratios):.1f} times" in page
    steps = result("env_steps")
    assert f"steps [{steps['waiting_exponential']['ratio']:.1f} times]" in page
    plain = steps["synchronous"]
    assert f"steps {plain['theirs_per_s'] / plain['ours_per_s']:.1f} times as often" in page
    saw = {(x["peer"], x["complaint"]): x["saw"] for x in result("pains")["findings"]}
    assert "4 episodes whose tool takes 0.5 s: 2.2 s" in saw["trl", 1]
    assert "0.0 in another" in saw["verifiers", 2]
    assert saw["gem-llm", 3].endswith("4 different games")
    assert "is worth 0.0, as any other" in saw["skyrl-gym", 4]


def test_no_page_has_a_merge_left_in_it() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
    marks = re.compile("^(<{7} |={7}$|>{7} )", re.MULTILINE)
    assert len(pages) > 10
    assert [page.name for page in pages if marks.search(page.read_text())] == []


def test_the_main_job_runs_end_to_end_with_the_smoke_preset(folder: Path) -> None:
    words = shlex.split(SHELL[0].split("&& ")[1])
    done = run([sys.executable, *words[1:], "preset=smoke"], folder, folder / "cache")
    assert done.returncode == 0, done.stderr
    out = folder / "runs" / "code-sandbox-v0-grpo-0"
    assert (out / "checkpoints" / "best" / "model.safetensors").is_file()
    assert (out / "curve.png").stat().st_size > 5000
    assert "test tasks, before training: passed" in done.stderr
    assert "test tasks, best weights by validation" in done.stderr


@pytest.mark.parametrize(
    "line",
    [line for line in SHELL[2:] if not any(word in line for word in NOT_RUN)],
)
def test_the_readmes_other_commands_run(line: str, folder: Path) -> None:
    words = shlex.split(line)
    quick = {
        "rl.train": ["preset=smoke", "steps=2"],
        "rl.eval": ["tasks=16"],
        # Its stages are the other commands; tests/rl/test_pipeline.py runs some.
        "rl.pipeline": ["--dry-run"],
    }[words[2]]
    done = run_warm([*words[1:], *quick], folder, folder / "cache")
    assert done.returncode == 0, done.stderr


@pytest.mark.slow  # It reads the run of the main job's test.
def test_the_page_on_the_first_run_reads_its_episodes(folder: Path) -> None:
    page = (ROOT / "docs" / "start.md").read_text()
    assert SHELL[0] in page
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    done = run_warm(["-c", code], folder, folder / "cache")
    assert done.returncode == 0, done.stderr
    assert "tests" in done.stdout


@pytest.mark.parametrize("line", [line for line in SHELL if "model=Qwen/" in line])
def test_commands_that_need_a_download_are_valid(line: str, folder: Path) -> None:
    done = run_warm([*shlex.split(line)[1:], "--dry-run"], folder, folder / "cache")
    assert done.returncode == 0, done.stderr
    assert "model=Qwen/Qwen3-0.6B\n" in done.stdout


@pytest.mark.parametrize("code", [text for kind, text in BLOCKS if kind == "python"])
def test_python_blocks_run(code: str, folder: Path) -> None:
    done = run([sys.executable, "-W", "error", "-c", code], folder, folder / "cache")
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_run_file_is_read_and_the_command_line_wins(folder: Path) -> None:
    words = ["-m", "rl.train", "config=run.toml", "steps=7", "dry_run=True"]
    done = run_warm(words, folder, folder / "cache")
    assert done.returncode == 0, done.stderr
    settings = dict(line.split("=", 1) for line in done.stdout.splitlines())
    assert (settings["env"], settings["algo"]) == ("code-sandbox-v0", "ppo")
    assert (settings["env.hide"], settings["env.max_turns"]) == ("constant", "2")
    assert (settings["optimizer.lr"], settings["steps"]) == ("0.0002", "7")


def test_toml_blocks_name_the_entry_point_groups() -> None:
    (text,) = (text for text in TOML if text != RUN_FILE)
    groups = tomllib.loads(text)["project"]["entry-points"]
    assert list(groups) == ["turnwise.envs", "turnwise.tools"]


def test_the_first_example_prints_the_documented_output(folder: Path) -> None:
    code = next(text for kind, text in BLOCKS if kind == "python" and "search-qa" in text)
    below = (ROOT / "README.md").read_text().split(code)[1].removeprefix("```\n").split("**")[0]
    done = run([sys.executable, "-W", "error", "-c", code], folder, folder / "cache")
    assert [line.strip() for line in done.stdout.strip().splitlines()] == [
        line.strip() for line in below.strip().splitlines()
    ]
