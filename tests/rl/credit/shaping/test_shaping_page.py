"""What docs/algorithms.md says of shaped rewards: its table, its code, its commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from envs.rewards import names
from rl.credit.shaping import Member, make_shapings
from rl.settings.parsing.command_line import parse
from rl.settings.train import PRESETS, TrainConfig

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "algorithms.md").read_text(encoding="utf-8")
SECTION = PAGE.split("## Shaped rewards")[1].split("\n## ")[0]


def test_its_table_names_every_shaping_that_is_built_in():
    rows = re.findall(r"^\| `(\w+)(\([^`]*\))?` \|", SECTION, re.MULTILINE)
    assert sorted(name for name, _ in rows) == names("shaping")
    shown = dict(rows)
    made = make_shapings(f"l1_exact{shown['l1_exact']}, l1_max{shown['l1_max']}")
    assert made[1].contributions([Member(5, True, 1.0)]) == [0.0]


def test_its_commands_are_understood():
    [block] = re.findall(r"```sh\n(.*?)```", SECTION, re.DOTALL)
    for line in block.splitlines():
        words = shlex.split(line)
        assert words[:3] == ["python", "-m", "rl.train"]
        config = parse(TrainConfig, words[3:], command="x", presets=PRESETS)
        assert make_shapings(config.shaping)


def test_its_code_does_what_it_says():
    [code] = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    scope: dict[str, object] = {"__name__": "page"}
    exec(compile(code, "docs/algorithms.md", "exec"), scope)
    brief = scope["brief"](tokens=3)  # type: ignore[operator]
    assert brief.contribute([Member(3, True, 1.0), Member(4, True, 1.0)]) == [0.0, -1.0]
