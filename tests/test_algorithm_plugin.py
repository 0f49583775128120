"""An installed package with an advantage, a surrogate and an algorithm, as in docs/plugins.md.

The distribution is a folder with a ``dist-info`` on the import path. The commands run in separate
processes, so that this process registers no names.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from pathlib import Path

import pytest
import warm_start

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "plugins.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## An advantage or a surrogate\n")[1].split("\n## ")[0]
SHORT = """
    env=code-sandbox model=tiny tiny.demonstrations=60 tiny.steps=4 tiny.warmup_steps=1
    tiny.hidden_size=24 tiny.num_layers=1 tiny.context_length=512 env.max_turns=1 steps=2 prompts=2
    group_size=3 eval.every=2 eval.tasks=0 eval.test_tasks=0 sampling.max_tokens=4 threads=1
    allow_unsafe=true
"""
BY_HAND = """
import torch
from rl.credit.algorithms import find_algorithm
from rl.credit.advantages.inputs import CreditInputs
from rl.credit.assignment import assign_credit
from rl.credit.batch import Batch
from rl.credit.losses import surrogate
from tests.helpers.small_learner import build_group

row = find_algorithm("rank-learning")
batch = Batch.from_groups([build_group([[(2, 2, 3.0)], [(2, 1, 1.0)], [(2, 1, 2.0)]])])
print(assign_credit(row, batch).advantages.tolist())
now, old = torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -1.0])
print(surrogate(row, now, old, torch.tensor([2.0, 0.0]), torch.tensor([0, 0])).loss.tolist())
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the page's module and the metadata that an installer writes."""
    home = tmp_path_factory.mktemp("installed")
    (code,) = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    (text,) = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)
    # Here only the entry points register the names.
    (home / "rank_learning.py").write_text(code.replace("@register\n", ""))
    info = home / "rank_learning-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rank-learning\nVersion: 1.0\n")
    groups = tomllib.loads(text)["project"]["entry-points"]
    groups["turnwise.surrogates"]["no-surrogate"] = "rank_learning:Ranks"
    groups["turnwise.algorithms"]["broken"] = "no_such_module:ROW"
    (info / "entry_points.txt").write_text(
        "".join(
            f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in names.items())
            for group, names in groups.items()
        )
    )
    return home


def run(home, *words):
    own = {"PYTHONPATH": f"{home}{os.pathsep}{ROOT}", "TURNWISE_CACHE": str(home / "cache")}
    own["OMP_NUM_THREADS"] = "1"
    return warm_start.run(words, cwd=home, env=os.environ | own, timeout=300)


def test_the_pages_results_agree_with_a_computation_by_hand(installed):
    done = run(installed, "-c", BY_HAND)
    assert done.returncode == 0, done.stderr
    advantages, losses = map(json.loads, done.stdout.splitlines())
    # Ranks of three: 2, -2 and 0 of 3, by 0.5; the first episode has two tokens.
    assert advantages == pytest.approx([1 / 3, 1 / 3, -1 / 3, 0.0])
    # The second token's probability fell by a factor of e: 0.1 * 1.
    assert losses == pytest.approx([2.0, 0.1])


@pytest.mark.parametrize(
    ("words", "row"),
    [
        (
            ["algo=rank-learning", "algo.advantage.scale=2"],
            {"advantage": {"name": "ranks", "scale": 2.0}},
        ),
        (
            ["algo=grpo", "algo.surrogate=squared", "algo.surrogate.weight=0.2"],
            {
                "advantage": {"name": "group-outcome", "baseline": "mean", "std": "unbiased"},
                "surrogate": {"name": "squared", "weight": 0.2},
            },
        ),
    ],
    ids=["algorithm", "surrogate"],
)
def test_it_trains_and_the_run_records_its_options(installed, tmp_path, words, row):
    out = tmp_path / "run"
    done = run(installed, "-m", "rl.train", *words, *SHORT.split(), f"out={out}")
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in metrics][-2:] == [1, 2]
    recorded = json.loads((out / "config.json").read_text())["algo"]["row"]
    assert {key: recorded[key] for key in row} == row
    again = run(installed, "-m", "rl.train", f"resume={out}", "dry_run=true")
    assert again.returncode == 0, again.stderr
    shown = set(again.stdout.split())
    assert {word for word in words if "." in word} <= {s.replace("=2.0", "=2") for s in shown}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["algo=rank-learnin"], "unknown algorithm 'rank-learnin'. Did you mean 'rank-learning'?"),
        (["algo.advantage=rank"], "unknown advantage 'rank'. Did you mean 'ranks'?"),
        (["algo.surrogate=squard"], "unknown surrogate 'squard'. Did you mean 'squared'?"),
        (
            ["algo.advantage=ranks", "algo.advantage.scal=2"],
            "unknown key 'algo.advantage.scal'. Did you mean 'algo.advantage.scale'?",
        ),
        (
            ["algo.surrogate=no-surrogate"],
            "surrogate 'no-surrogate': <class 'rank_learning.Ranks'> is no subclass of "
            "rl.credit.plugin.Surrogate",
        ),
        (["algo=broken"], "advertised by rank-learning as 'no_such_module:ROW', fails to import"),
    ],
)
def test_mistakes_are_reported_in_one_line(installed, words, line):
    done = run(installed, "-m", "rl.train", *words)
    assert done.returncode != 0
    (said,) = done.stderr.splitlines()
    assert line in said


@pytest.mark.quick
def test_help_shows_its_options(installed):
    done = run(installed, "-m", "rl.train", "algo=rank-learning", "--help")
    said = " ".join(done.stdout.split())
    assert "algo.advantage ranks" in said and "One of:" in said
    assert "algo.advantage.scale 0.5" in said and "The advantage of the best episode." in said
