"""Recipes: what a name stands for beside its row, and the run files."""

import json
import re
from pathlib import Path

import pytest

from rl.credit.algorithms import ALGORITHMS
from rl.credit.shaping import Member, make_shapings
from rl.pipeline import read_stages
from rl.settings.parsing.command_line import parse
from rl.settings.recipes import RECIPES
from rl.settings.train import PRESETS, TrainConfig

HOME = Path(__file__).resolve().parents[3]
FILES = sorted((HOME / "recipes").glob("*.toml"))


def train(*words):
    return parse(TrainConfig, words, command="python -m rl.train", presets=PRESETS)


def test_dapo_is_complete():
    config = train("env=toy-copy", "algo=dapo")
    row = config.algo.row
    assert (row.surrogate.clip_low, row.surrogate.clip_high, row.aggregation) == (
        0.2,
        0.28,
        "token-mean",
    )
    assert (config.curriculum.max_draws, config.shaping) == (10, "overlong")
    assert (row.kl.coef, row.advantage.std) == (0.0, "unbiased")


def test_settings_that_a_recipe_implies_are_the_weakest_layer(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('env = "toy-copy"\n[algo]\nname = "dapo"\n[curriculum]\nmax_draws = 3\n')
    config = train(f"config={file}", "shaping=")
    assert (config.algo.name, config.curriculum.max_draws, config.shaping) == ("dapo", 3, "")
    assert train("env=toy-copy", f"config={file}", "algo=grpo").shaping == ""
    preset = train("env=toy-copy", "algo=concise", "preset=smoke")
    assert (preset.prompts, preset.curriculum.pool) == (8, 8)


def test_length_controlled_rows_ask_for_a_budget():
    for name, kind in (("lcpo-exact", "exact"), ("lcpo-max", "max")):
        config = train("env=math", f"algo={name}")
        assert config.env.options.token_budget == kind
        assert config.shaping == f"l1_{kind}"
        assert config.algo.row.kl.coef == 0.001


def test_overlong_knows_the_longest_episode_of_the_run():
    """DAPO's share: a fifth of the longest answer, 4,096 of 20,480."""
    (weighted,) = make_shapings("overlong")
    members = [Member(n, False, 0.0, limit=20480) for n in (16384, 17408, 18432, 20480)]
    assert weighted.contributions(members) == [0, -0.25, -0.5, -1]
    with pytest.raises(ValueError, match="the maximum length of an episode is unknown"):
        weighted.contributions([Member(5, False, 0.0)])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_run_files_hold_and_cite_their_paper(path):
    text = path.read_text()
    assert re.search(r"^# .*arXiv \d{4}\.\d{5}", text)
    assert "# Different: " in text or "# As published: " in text or "not here" in text
    usage = next(line for line in text.splitlines() if line.startswith("# python -m"))
    if "[[stage]]" in text:
        assert usage.startswith(f"# python -m rl.pipeline recipes/{path.name}")
        assert len(read_stages(str(path), Path("runs"), {})) >= 2
    else:
        assert usage.startswith(f"# python -m rl.train config=recipes/{path.name}")
        train(f"config={path}")


def test_the_documentation_shows_the_recipes():
    page = (HOME / "docs" / "algorithms.md").read_text()
    table = page.split("| recipe | row | and |\n|---|---|---|\n")[1].split("\n\n")[0]
    shown = {}
    for line in table.splitlines():
        name, row, rest = (cell.strip() for cell in line.strip("|").split("|"))
        shown[name.strip("`")] = (row, dict(p.split("=") for p in re.findall(r"`([^`]+)`", rest)))
    assert list(shown) == list(RECIPES)
    for name, recipe in RECIPES.items():
        row, settings = shown[name]
        base, *changes = re.findall(r"`([^`]+)`", row)
        changed = {k: float(v) for k, v in (c.split("=") for c in changes)}
        assert recipe.row == ALGORITHMS[base].changed(changed), name
        assert settings == dict(recipe.settings)


def test_the_documentation_names_every_run_file():
    page = (HOME / "docs" / "algorithms.md").read_text()
    assert {path.name for path in FILES} <= set(re.findall(r"recipes/(\w+\.toml)", page))


def test_the_documentation_shows_measured_values():
    results = json.loads((HOME / "benchmarks" / "results" / "algorithms.json").read_text())
    page = (HOME / "docs" / "algorithms.md").read_text()
    section = page.split("## Measured\n")[1].split("\n## ")[0]
    shown = re.findall(r"^\| `?([\w -]+?)`? \| (\S+ \[.*\]) \|$", section, flags=re.M)
    measured = [
        (line["row"], "{:.3f} [{:.3f}, {:.3f}]".format(*line["after"]))
        for study in results["studies"].values()
        for line in study["table"]
    ]
    assert shown == measured and len(shown) > 20


def test_the_table_of_methods_names_existing_files():
    page = (HOME / "docs" / "algorithms.md").read_text()
    table = page.split("## Every method\n")[1].split("\n## ")[0]
    words = re.findall(r"`([^`]+)`", table)
    rows = {*ALGORITHMS, *RECIPES}
    for word in words:
        for name in re.findall(r"algo=([\w-]+)", word):
            assert name in rows, word
        for name in re.findall(r"recipes/(\w+\.toml)", word):
            assert (HOME / "recipes" / name).exists(), word
        for name in re.findall(r"benchmarks\.(\w+)", word):
            made = HOME / "benchmarks" / name
            assert made.is_dir() or made.with_suffix(".py").exists(), word
        for module in re.findall(r"\brl\.(\w+)", word):
            assert (HOME / "rl" / module).is_dir() or (HOME / "rl" / f"{module}.py").exists(), word
        for choice, value in re.findall(r"^(?:algo\.)?([\w.]+)=([\w.+-]+)$", word):
            if choice.split(".")[0] in ALGORITHMS["grpo"].__dataclass_fields__:
                ALGORITHMS["grpo"].changed(_fitting(choice, value))


def _fitting(choice, value):
    """A choice with what it needs beside it."""
    needs = {
        "group-dense": {"token_rewards.kind": "implicit"},
        **{kind: {"value.coef": 0.1} for kind in ("gae", "turn-gae", "bilevel-gae")},
        "kl.ref_every": {"kl.coef": 0.1},
    }
    plain = {"True": True, "False": False}.get(value, value)
    if re.fullmatch(r"[\d.]+", value):
        plain = int(value) if value.isdigit() else float(value)
    return {choice: plain} | needs.get(choice, {}) | needs.get(str(value), {})
