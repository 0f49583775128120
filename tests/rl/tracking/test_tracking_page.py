"""docs/tracking.md: its classes work, its tables name every sink, option and extra."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn
from rl.tracking import RunInfo, SinkOptions
from rl.tracking.sink import sink_type
from tools.field_docs import field_docs

HOME = Path(__file__).resolve().parents[3]
PAGE = (HOME / "docs" / "tracking.md").read_text(encoding="utf-8")
BUILT_IN = ("mlflow", "tensorboard", "trackio", "wandb")


def block(number):
    names = {"__name__": "rl.tracking"}
    code = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[number]
    exec(compile(code, "docs/tracking.md", "exec"), names)
    return names


def test_its_callback_writes_the_best_answer(tmp_path):
    callback = block(0)["BestAnswers"](every=2)
    callback.on_start(RunInfo("train", tmp_path, {}))
    episodes = []
    for answer, reward in (("no", 0.25), ("yes", 1.0)):
        episode = Trajectory("toy", {}, 0, 0, 0)
        episode.turns.append(Turn(answer, "", "stop", 1, rewards={"right": reward}))
        episodes.append(episode)
    for step in (1, 2):
        callback.on_step(step, {}, [TrajectoryGroup(episodes)])
    assert (tmp_path / "best.txt").read_text() == "2 1.00 'yes'\n"


def test_its_sink_writes_the_rewards(tmp_path):
    names = block(1)
    sink = names["CSV"](names["CSVOptions"](separator=";"))
    sink.open(RunInfo("train", tmp_path, {}), "")
    sink.log(3, {"reward": 0.5})
    sink.log(3, {"eval/success": 0.5})
    assert (tmp_path / "reward.csv").read_text() == "3;0.5\n"


def test_its_tables_name_every_sink_option_and_extra():
    extras = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    for name in BUILT_IN:
        kind = sink_type(name)
        assert kind.extra == f"turnwise[{name}]"
        assert name in extras["optional-dependencies"]
        assert f"| `{name}` | `{kind.extra}` |" in PAGE
        for key in field_docs(kind.Options):
            assert f"`log.{key}`" in PAGE, key
    assert set(field_docs(SinkOptions)) == {"project", "name", "timeout_s", "episodes"}
    default = SinkOptions()
    assert f"| `log.project` | `{default.project}` |" in PAGE
    assert f"| `log.timeout_s` | {json.dumps(int(default.timeout_s))} |" in PAGE
