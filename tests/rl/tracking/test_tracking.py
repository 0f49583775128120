"""``log=`` and ``callbacks=``: their words, a stranger's package, and every command's run."""

from __future__ import annotations

import importlib
import json
import textwrap

import pytest

import rl.dpo
import rl.eval
import rl.sft
import rl.train
from rl.errors import RunFailure, UsageError
from rl.run.folder import read_jsonl
from rl.run.process.command import run_command
from rl.settings.evaluate import EvaluateConfig
from rl.settings.finetuning import SFTConfig
from rl.settings.parsing.command_line import parse
from rl.settings.run import as_lines
from rl.settings.train import PRESETS, TrainConfig
from rl.tracking import Callback, RunInfo, register_callback, register_sink
from rl.tracking.callback import CALLBACKS, make_callbacks
from rl.tracking.sink import SINKS, make_sinks

STRANGER = '''
"""A package from outside, with a sink and a callback."""

import json
from dataclasses import dataclass

from rl.tracking import Callback, Sink, SinkOptions


@dataclass(frozen=True, kw_only=True)
class LinesOptions(SinkOptions):
    colour: str = "red"
    """Colour of the lines."""


class Lines(Sink):
    Options = LinesOptions

    def open(self, run, id):
        self.file = (run.folder / "lines.txt").open("a")
        self.write("open", run.command, run.step, id, self.options.colour, run.config["seed"])
        return "lines-1"

    def write(self, *row):
        self.file.write(json.dumps(row) + "\\n")

    def log(self, step, metrics):
        self.write("log", step, sorted(metrics))

    def finish(self, ending):
        self.write("finish", ending.status, sorted(ending.images))
        self.file.close()


class Samples(Callback):
    seen = []

    def __init__(self, every=1):
        self.every = every

    def on_start(self, run):
        self.seen.append(("start", run.command, run.step))

    def on_step(self, step, metrics, groups):
        if step % self.every == 0:
            episodes = [t for group in groups for t in group.finished]
            self.seen.append(("step", step, metrics["step"], len(episodes)))

    def on_evaluation(self, step, split, metrics, groups):
        self.seen.append(("evaluation", step, split, len(groups)))

    def on_end(self, result):
        self.seen.append(("end", result and result.get("finished")))


class Fails(Callback):
    def on_step(self, step, metrics, groups):
        if step == 2:
            raise KeyError("no such thing")
'''


@pytest.fixture
def fresh(monkeypatch):
    """The registries, as a new process has them; what a test adds is forgotten."""
    for registry in (SINKS, CALLBACKS):
        for name in ("_objects", "_lazy", "_contested"):
            monkeypatch.setattr(registry, name, dict(getattr(registry, name)))
        monkeypatch.setattr(registry, "_scanned", False)


@pytest.fixture
def stranger(tmp_path, monkeypatch, fresh):
    """An installed distribution that advertises a sink and callbacks; returns its module."""
    site = tmp_path / "site"
    info = site / "stranger-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[turnwise.sinks]\nlines = tracking_stranger:Lines\n\n[turnwise.callbacks]\n"
        "samples = tracking_stranger:Samples\nfails = tracking_stranger:Fails\n"
    )
    (site / "tracking_stranger.py").write_text(textwrap.dedent(STRANGER))
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()
    module = importlib.import_module("tracking_stranger")
    module.Samples.seen.clear()
    return module


def train(*words):
    return parse(TrainConfig, ["env=toy-copy", *words], command="c", presets=PRESETS)


def rows(out):
    return read_jsonl(out / "lines.txt")


# ---- words -----------------------------------------------------------------------------------


def test_log_names_sinks_and_their_options_follow():
    assert train().log.names == []
    config = train("log=wandb,tensorboard", "log.project=p", "log.entity=team")
    assert config.log.names == ["wandb", "tensorboard"]
    assert (config.log.settings.project, config.log.settings.entity) == ("p", "team")
    both = train("log=tensorboard, mlflow", "log.tracking_uri=file:x").log
    assert (both.names, both.settings.tracking_uri) == (["tensorboard", "mlflow"], "file:x")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["log=wanbd"], "unknown sink 'wanbd'. Did you mean 'wandb'?"),
        (["log=wandb", "log.projet=x"], "unknown key 'log.projet'. Did you mean 'log.project'?"),
        (["log=wandb,wandb"], "log (wandb,wandb) names a sink twice"),
        (["log.project=x"], "log.project (x) needs a sink: give log=..., one of mlflow, "),
        (["log=wandb", "log.mode=of"], "log.mode ('of') must be one of auto, online, offline"),
        (["log=wandb", "log.timeout_s=0"], "log.timeout_s (0.0) must be >= 0.1"),
    ],
)
def test_a_mistake_is_one_line(words, says):
    with pytest.raises(UsageError) as refused:
        train(*words)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("config_type", [TrainConfig, SFTConfig, EvaluateConfig])
def test_the_choice_reads_back_as_itself(config_type):
    words = ["env=toy-copy", "log=wandb,mlflow", "log.tags=a,b", "callbacks=samples(every=5)"]
    words += ["out=x"]
    config = parse(config_type, words, command="c", presets={})
    assert parse(config_type, as_lines(config).splitlines(), command="c", presets={}) == config
    assert "log=wandb,mlflow\n" in as_lines(config)


def test_help_lists_the_sinks_and_the_options_of_the_chosen_one(capsys):
    with pytest.raises(SystemExit):
        parse(TrainConfig, ["log=wandb", "--help"], command="c", presets={})
    page = " ".join(capsys.readouterr().out.split())
    assert "none, mlflow, tensorboard, trackio, wandb" in page
    assert "log.entity" in page


def test_a_package_that_is_missing_is_named_with_its_extra(fresh, monkeypatch):
    from rl.tracking.wandb import WandB, WandBOptions

    monkeypatch.setattr(WandB, "package", "no_such_package")
    with pytest.raises(UsageError) as refused:
        make_sinks(["wandb"], WandBOptions())
    assert str(refused.value) == (
        "log=wandb needs the package 'no_such_package': pip install 'turnwise[wandb]'"
    )


def test_an_object_that_is_no_sink_is_refused(fresh):
    register_sink("five", 5)
    with pytest.raises(UsageError, match="sink 'five' is 5: expected a class derived from Sink"):
        train("log=five")


def test_an_evaluation_without_a_folder_has_no_place_for_trackers(capfd):
    assert rl.eval.main(["env=toy-copy", "log=tensorboard"]) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error == "error: log (tensorboard) needs a folder: give out=FOLDER"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("sampels", "unknown callback 'sampels'. Did you mean 'samples'?"),
        ("samples(evry=2)", "callback 'samples' has no option 'evry'. Did you mean 'every'?"),
        ("samples(", "expected NAME or NAME(KEY=VALUE), separated by commas"),
    ],
)
def test_a_callback_that_cannot_be_made_is_named(stranger, text, says):
    with pytest.raises(UsageError) as refused:
        make_callbacks(text)
    assert says in str(refused.value)


def test_a_callback_is_a_class_in_a_file_or_module(words, tmp_path, monkeypatch, capfd):
    source = """
        from pathlib import Path
        from rl.tracking import Callback

        class Other:
            pass

        class Writes(Callback):
            def __init__(self, text="x"):
                self.text = text

            def on_start(self, run):
                self.path = run.folder / "mine.txt"

            def on_step(self, step, metrics, groups):
                with self.path.open("a") as file:
                    file.write(f"{self.text}{step} ")
        """
    (tmp_path / "my_mine.py").write_text(textwrap.dedent(source))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    out = tmp_path / "run"
    both = "my_mine.py:Writes(text='a'), my_mine:Writes"
    assert rl.train.main([*words(out, steps=1), f"callbacks={both}"]) == 0
    monkeypatch.chdir("/")
    assert rl.train.main([f"resume={out}", "steps=2"]) == 0
    assert (out / "mine.txt").read_text() == "a1 x1 a2 x2 "
    capfd.readouterr()
    for text, says in (
        (f"{tmp_path}/none.py:Writes", "there is no such file"),
        (f"{tmp_path}/my_mine.py:Writs", f"error: callbacks ({tmp_path}/my_mine.py:Writs): "),
        (f"{tmp_path}/my_mine.py:Writs", "/my_mine.py has no Writs; it has Other, Writes"),
        ("my_mine:Other", "expected an rl.tracking.Callback"),
        ("my_mine:Writes(txt=1)", "no option 'txt'. Did you mean 'text'?"),
    ):
        assert rl.train.main(["env=toy-copy", "dry_run=true", f"callbacks={text}"]) == 1
        assert says in capfd.readouterr().err.splitlines()[-1]


def test_a_dry_run_refuses_an_unknown_callback_and_a_missing_package(monkeypatch, capfd):
    from rl.tracking.wandb import WandB

    assert rl.train.main(["env=toy-copy", "dry_run=true", "callbacks=no_such"]) == 1
    assert "error: callbacks (no_such): unknown callback 'no_such'" in capfd.readouterr().err
    monkeypatch.setattr(WandB, "package", "no_such_package")
    assert rl.train.main(["env=toy-copy", "dry_run=true", "log=wandb"]) == 1
    assert "log=wandb needs the package 'no_such_package'" in capfd.readouterr().err


def test_an_object_that_is_no_callback_is_refused():
    with pytest.raises(UsageError, match=r"callbacks: 5 must be an rl\.tracking\.Callback"):
        make_callbacks("", [5])
    with pytest.raises(UsageError, match=r"Callback: give an object, Callback\(\)$"):
        make_callbacks("", [Callback])


# ---- a stranger's package, through the commands ------------------------------------------------


def test_a_strangers_sink_and_callback_see_the_whole_run(stranger, words, tmp_path, capfd):
    out = tmp_path / "run"
    chosen = {"log": "lines", "log__colour": "blue", "callbacks": "samples(every=2)"}
    command = words(out, **chosen, eval__every=4, eval__tasks=6, eval__test_tasks=6)
    assert rl.train.main(command) == 0
    records = read_jsonl(out / "metrics.jsonl")
    written = rows(out)
    assert written[0] == ["open", "train", 0, "", "blue", 0]
    assert written[1:-1] == [["log", r["step"], sorted(r.keys() - {"step"})] for r in records]
    assert written[-1] == ["finish", "finished", ["curve", "ledger"]]
    assert stranger.Samples.seen == [
        ("start", "train", 0),
        ("evaluation", 0, "test", 6),
        ("evaluation", 0, "validation", 6),
        ("step", 2, 2, 24),
        ("evaluation", 4, "validation", 6),
        ("step", 4, 4, 24),
        ("evaluation", 4, "test", 6),
        ("end", True),
    ]
    assert "step 4/4" in capfd.readouterr().err


def test_a_resumed_run_goes_on_in_the_tracker_without_repeating_a_step(stranger, words, tmp_path):
    out = tmp_path / "run"
    assert rl.train.main(words(out, log="lines", steps=3, save_every=2)) == 0
    # The last checkpoint is lost: step 3 is done again.
    (out / "checkpoints" / "step-000003" / "trainer_state.pt").unlink()
    assert rl.train.main(words(out, log="lines", steps=4, resume="auto")) == 0
    opened = [row for row in rows(out) if row[0] == "open"]
    assert [row[1:4] for row in opened] == [["train", 0, ""], ["train", 2, "lines-1"]]
    steps = [row[1] for row in rows(out) if row[0] == "log" and "reward" in row[2]]
    assert steps == [1, 2, 3, 4]
    assert json.loads((out / "tracking" / "lines.json").read_text())["step"] == 4


def test_a_callback_that_raises_ends_the_run_in_one_line_and_saves_its_steps(
    stranger, words, tmp_path, capfd
):
    out = tmp_path / "run"
    assert rl.train.main(words(out, callbacks="fails", log="lines", save_every=4)) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith(
        "error: callback 'fails' failed in on_step of step 2: KeyError: 'no such thing' "
        "(tracking_stranger.py:"
    )
    assert (out / "checkpoints" / "step-000002").is_dir()
    assert rows(out)[-1] == ["finish", "failed", []]


def test_a_callback_sees_rewards_and_the_advantages_of_the_update(words, tmp_path, fresh):
    steps = []

    class Sees(Callback):
        def on_step(self, step, metrics, groups):
            for group in groups:
                rewards = [t.shaped_reward for t in group.finished]
                mean = sum(rewards) / len(rewards)
                for t, reward in zip(group.finished, rewards, strict=True):
                    # Dr. GRPO's: the reward less its group's mean, for every sampled token.
                    assert len(t.advantages) == t.num_sampled > 0
                    assert t.advantages == pytest.approx([reward - mean] * t.num_sampled)
                    assert "advantages" not in t.to_json()
                steps.append((step, max(rewards) > min(rewards)))

    register_callback("sees", Sees)
    assert rl.train.main(words(tmp_path / "run", algo="dr-grpo", callbacks="sees")) == 0
    assert {step for step, _ in steps} == {1, 2, 3, 4}
    assert any(differ for _, differ in steps)


async def test_callbacks_from_python_are_called_beside_those_by_name(stranger, words, tmp_path):
    class Counts(Callback):
        steps = 0

        def on_step(self, step, metrics, groups):
            self.steps += 1

    counts = Counts()
    config = parse(
        TrainConfig,
        words(tmp_path / "run", steps=2, callbacks="samples"),
        command="c",
        presets=PRESETS,
    )
    await rl.train.train(config, callbacks=[counts])
    assert counts.steps == 2
    assert [seen[0] for seen in stranger.Samples.seen].count("step") == 2


def test_sft_and_eval_go_the_same_way(stranger, toy_model, tmp_path, capfd):
    common = ["env=toy-copy", "sampling.max_tokens=3", "log=lines", "callbacks=samples"]
    out = tmp_path / "sft"
    words = [*common, f"model={toy_model}", "steps=2", "batch_size=4", "demonstrations=8"]
    words += ["test_tasks=4", f"out={out}"]
    assert run_command("rl.sft", SFTConfig, {}, rl.sft._run, words) == 0
    assert [row[:2] for row in rows(out)] == [
        *(["open", "sft"], ["log", 0], ["log", 1], ["log", 2], ["log", 2]),
        ["finish", "finished"],
    ]
    assert rows(out)[-1][2] == ["curve"]

    folder = tmp_path / "eval"
    assert rl.eval.main([*common, f"model={toy_model}", "tasks=4", f"out={folder}"]) == 0
    assert [row[:2] for row in rows(folder)] == [
        *(["open", "eval"], ["log", 0], ["finish", "finished"])
    ]
    assert stranger.Samples.seen[-3:-1] == [("start", "eval", 0), ("evaluation", 0, "test", 4)]
    capfd.readouterr()


def test_an_error_in_on_start_names_it():
    class Starts(Callback):
        def on_start(self, run):
            raise RuntimeError

    with pytest.raises(RunFailure, match=r"callback 'Starts' failed in on_start: RuntimeError: "):
        make_callbacks("", [Starts()]).start(RunInfo("train", None, {}))
