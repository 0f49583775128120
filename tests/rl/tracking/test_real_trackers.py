"""Each sink against the real package, offline: what it wrote is read back by the package itself."""

from __future__ import annotations

import json
import struct

import pytest
from viewer_runs import episode

from rl.rollout.trajectory import TrajectoryGroup
from rl.settings.parsing.command_line import parse
from rl.settings.train import PRESETS, TrainConfig
from rl.tracking import RunInfo
from rl.tracking.json_lines import JsonLines
from rl.tracking.tracker import Tracker
from rl.train import main

pytestmark = pytest.mark.filterwarnings("default")
LOG_BLOCK = 32768


@pytest.fixture
def track(tmp_path):
    """Log two records, then resume after step 1 and log two more; returns the run's folder."""

    def track(name, *words):
        folder = tmp_path / "my-run"
        folder.mkdir()
        said = []
        words = [f"log={name}", "log.project=proj", "log.timeout_s=120", "log.episodes=1", *words]
        config = parse(TrainConfig, ["env=toy-copy", *words], command="c", presets=PRESETS)
        for start, rewards in ((0, {1: 0.25, 2: 0.5}), (1, {2: 0.75, 3: 1.0})):
            run = RunInfo("train", folder, {"steps": 3, "algo.kl_coef": 0.5, "env": "toy"})
            lines = JsonLines(folder / "metrics.jsonl")
            tracker = Tracker(run, config, [lines], said.append, marks=folder / "tracking")
            with tracker if start == 0 else resumed(tracker, start):
                for step, reward in rewards.items():
                    tracker.log({"step": step, "reward": reward, "failures/Env Failure": 1})
                    tracker.log_episodes(step, [TrajectoryGroup([episode("<b>?", "a", reward)])])
                tracker.log({"step": max(rewards), "eval/success": reward})
                draw(folder / "curve.png")
                tracker.finish({"steps": max(rewards)}, {"curve": folder / "curve.png"})
        assert [line for line in said if "cannot" in line or "not finished" in line] == []
        return folder

    return track


def draw(path):
    from matplotlib.figure import Figure

    Figure(figsize=(1, 1)).savefig(path)


class resumed:
    """A tracker that goes on after a step."""

    def __init__(self, tracker, step):
        self.tracker, self.step = tracker, step

    def __enter__(self):
        self.tracker.open(self.step)

    def __exit__(self, *error):
        self.tracker.close(error[1])


def test_tensorboard_drops_the_steps_that_are_repeated(track):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    folder = track("tensorboard")
    events = EventAccumulator(str(folder / "tensorboard")).Reload()
    rewards = [(e.step, e.value) for e in events.Scalars("reward")]
    assert rewards == [(1, 0.25), (2, 0.75), (3, 1.0)]
    assert [e.step for e in events.Scalars("eval/success")] == [3]
    (config,) = events.Tensors("config/text_summary")
    assert b"| algo.kl_coef | 0.5 |" in config.tensor_proto.string_val[0]
    assert [e.step for e in events.Images("curve")] == [3]
    texts = events.Tensors("episodes/1/text_summary")
    # TensorBoard purges repeated numbers and images, and keeps repeated texts.
    assert sorted({e.step for e in texts}) == [1, 2, 3]
    assert b"\n    <b>?\n" in texts[0].tensor_proto.string_val[0]


def test_wandb_offline_keeps_the_id_and_repeats_no_step(track, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    folder = track("wandb", "log.entity=team", "log.tags=a, b")
    wandb.teardown()  # W&B's process writes the last records after a run's finish() has returned.
    runs = sorted((folder / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(runs) == 2
    records = [read_wandb(path) for path in runs]
    ids = {run["run"].run_id for run in records}
    assert ids == {json.loads((folder / "tracking" / "wandb.json").read_text())["id"]}
    first = records[0]["run"]
    assert (first.project, first.entity, first.display_name) == ("proj", "team", "my-run")
    assert (first.job_type, list(first.tags)) == ("train", ["a", "b"])
    config = {item.key: json.loads(item.value_json) for item in first.config.update}
    assert config["algo.kl_coef"] == 0.5
    rows = [row for run in records for row in run["history"]]
    assert [(row["step"], row["reward"]) for row in rows if "reward" in row] == [
        *((1, 0.25), (2, 0.5), (3, 1.0))
    ]
    assert [row["step"] for row in rows if "eval/success" in row] == [2, 3]
    assert records[1]["summary"]["result/steps"] == 3
    assert any(key.startswith("curve") for row in rows for key in row)
    pages = sorted((folder / "wandb").rglob("media/html/episodes/*.html"))
    assert len(pages) == 3
    assert "\n&lt;b&gt;?\n" in pages[0].read_text()


def read_wandb(path):
    """The records of a run's file, as W&B's own protocol buffers."""
    from wandb.proto import wandb_internal_pb2

    found = {"history": [], "summary": {}}
    for data in log_records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.setdefault("run", record.run)
        elif kind == "history":
            items = record.history.item
            found["history"].append({name(i): json.loads(i.value_json) for i in items})
        elif kind == "summary":
            for item in record.summary.update:
                found["summary"][name(item)] = json.loads(item.value_json)
    return found


def log_records(data):
    """The records of a log in LevelDB's format, after W&B's header of 7 bytes."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if (left := LOG_BLOCK - at % LOG_BLOCK) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # The whole of a record, or its last part.
            yield record
            record = b""


def name(item):
    return item.key or "/".join(item.nested_key)


def test_mlflow_continues_its_run(track, tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    store = f"file:{tmp_path / 'mlruns'}"
    folder = track("mlflow", f"log.tracking_uri={store}")
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("proj")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_id == json.loads((folder / "tracking" / "mlflow.json").read_text())["id"]
    assert (run.info.run_name, run.info.status) == ("my-run", "FINISHED")
    assert run.data.params == {"steps": "3", "algo.kl_coef": "0.5", "env": "toy"}
    history = client.get_metric_history(run.info.run_id, "reward")
    assert [(m.step, m.value) for m in history] == [(1, 0.25), (2, 0.5), (3, 1.0)]
    assert [m.step for m in client.get_metric_history(run.info.run_id, "eval/success")] == [2, 3]
    files = {a.path for a in client.list_artifacts(run.info.run_id)}
    assert files == {"curve.png", "result.json", "episodes"}
    texts = [a.path for a in client.list_artifacts(run.info.run_id, "episodes")]
    assert texts == [f"episodes/step-00000{step}-1.txt" for step in (1, 2, 3)]


@pytest.mark.parametrize(
    ("name", "package"),
    [("tensorboard", "tensorboard"), ("wandb", "wandb"), ("mlflow", "mlflow")],
)
def test_a_whole_run_logs_every_step(name, package, words, tmp_path, monkeypatch, capfd):
    pytest.importorskip(package)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    out = tmp_path / "run"
    assert main(words(out, log=name, log__timeout_s=120, steps=2)) == 0
    stdout, stderr = capfd.readouterr()
    assert stdout == f"run: {out}\n", "standard output is the command's own"
    assert f"{name}: cannot" not in stderr
    mark = json.loads((out / "tracking" / f"{name}.json").read_text())
    assert (mark["step"], "reward" in mark["keys"]) == (2, True)


def test_trackio_continues_its_run(track, tmp_path, monkeypatch, capfd):
    pytest.importorskip("trackio")
    from trackio.sqlite_storage import SQLiteStorage

    folder = track("trackio")
    assert capfd.readouterr().out == "", "standard output is the command's own"
    run = json.loads((folder / "tracking" / "trackio.json").read_text())["id"]
    assert run == "my-run"
    rows = SQLiteStorage.get_logs("proj", run)
    assert [(r["step"], r["reward"]) for r in rows if "reward" in r] == [
        *((1, 0.25), (2, 0.5), (3, 1.0))
    ]
    assert [r["step"] for r in rows if "eval/success" in r] == [2, 3]
    assert [r["episodes/1"][:12] for r in rows if "episodes/1" in r] == 3 * ["search-qa-v0"]
    assert SQLiteStorage.get_run_config("proj", run)["algo.kl_coef"] == 0.5
