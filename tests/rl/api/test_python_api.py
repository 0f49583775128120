"""The commands as functions: the command line's settings, numbers and errors, and nothing left."""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import functools
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
import toy_envs
from safetensors.torch import load_file
from transformers.utils import logging as transformers_logging

import rl
from envs.base import loop_watch
from rl.eval import main as evaluate_command
from rl.rollout.trajectory_files import read_trajectories
from rl.settings.parsing.command_line import parse
from rl.settings.train import PRESETS
from rl.sft import main as sft_command
from rl.train import main as train_command

HOME = Path(__file__).resolve().parents[3]


@pytest.fixture
def settings(toy_model):
    """Settings of a short run in Python, as those of ``words``."""
    return {
        "env": "toy-copy",
        "model": str(toy_model),
        "steps": 3,
        "prompts": 6,
        "group_size": 4,
        "optimizer": {"lr": 3e-3, "warmup_steps": 0},
        "sampling": {"max_tokens": 3, "slots": 24},
        "eval": {"every": 100, "tasks": 6, "test_tasks": 6},
        "save_every": 100,
        "deterministic": True,
    }


def line(*words, config_type=rl.TrainConfig):
    return parse(config_type, words, command="c", presets=PRESETS)


def weights(folder, checkpoint="step-000003"):
    return load_file(folder / "checkpoints" / checkpoint / "model.safetensors")


def equal(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"env": "toy-copy"}, ["env=toy-copy"]),
        ({"env": "math", "algo": "dapo", "steps": 7}, ["env=math", "algo=dapo", "steps=7"]),
        (
            {
                "env": {"name": "toy-chatter", "tool_s": 1},
                "optimizer": {"lr": 1e-3},
                "lora": {"rank": 4},
            },
            ["env=toy-chatter", "env.tool_s=1", "optimizer.lr=1e-3", "lora.rank=4"],
        ),
        (
            {
                "env": "toy-copy",
                "algo": {"name": "ppo", "surrogate": {"dual_clip": 3}},
                "optimizer": {"betas": (0.8, 0.9)},
            },
            ["env=toy-copy", "algo=ppo", "algo.surrogate.dual_clip=3", "optimizer.betas=0.8,0.9"],
        ),
        (
            {"env": "toy-copy", **PRESETS["smoke"], "env.max_turns": 2, "out": Path("a,b")},
            ["env=toy-copy", "preset=smoke", "env.max_turns=2", "out=a,b"],
        ),
        (
            {"policy": {"name": "vllm-server", "replicas": 2}, "shaping": "0.5*kimi_length"},
            ["policy=vllm-server", "policy.replicas=2", "shaping=0.5*kimi_length"],
        ),
    ],
)
def test_settings_are_those_of_the_command_line(given, words):
    assert rl.TrainConfig(**given) == line(*words)


def test_an_object_of_a_group_sets_all_of_it():
    config = rl.TrainConfig(env="toy-copy", optimizer=rl.OptimizerConfig(lr=1e-3))
    assert config.optimizer == rl.OptimizerConfig(lr=1e-3)
    assert rl.TrainConfig(env="toy-copy", optimizer={"lr": 1e-3}).optimizer.warmup_steps == 5
    changed = dataclasses.replace(config, seed=3)
    assert (changed.seed, changed.optimizer) == (3, config.optimizer)
    assert rl.TrainConfig(env=config.env, algo=config.algo) == rl.TrainConfig(env="toy-copy")


def test_rows_may_be_a_list_of_dicts():
    rows = [{"question": "1+1", "answer": "2"}]
    config = rl.EvaluateConfig(env={"name": "math", "tasks": rows}, split="all")
    assert config.env.options.tasks == '[{"question": "1+1", "answer": "2"}]'


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"stepz": 3}, "stepz=3"),
        ({"steps": "many"}, "steps=many"),
        ({"steps": 2.5}, "steps=2.5"),
        ({"deterministic": "maybe"}, "deterministic=maybe"),
        ({"env": "toy-cpoy"}, "env=toy-cpoy"),
        ({"env": "nowhere.py:Env"}, "env=nowhere.py:Env"),
        ({"env": {"name": "toy-copy", "maxturns": 1}}, "env.maxturns=1"),
        ({"algo": "grop"}, "algo=grop"),
        ({"optimizer": {"lr": -1}}, "optimizer.lr=-1"),
        ({"sampling": {"temperature": 0}}, "sampling.temperature=0"),
        ({"seed": -1}, "seed=-1"),
        ({"resume": "nowhere"}, "resume=nowhere"),
    ],
)
def test_mistakes_are_those_of_the_command_line(given, word):
    with pytest.raises(rl.UsageError) as said:
        rl.TrainConfig(**{"env": "toy-copy", **given})
    with pytest.raises(rl.UsageError) as typed:
        line("env=toy-copy", word)
    assert str(said.value) == str(typed.value)
    assert "\n" not in str(said.value)


def test_mistakes_that_no_command_line_can_make():
    with pytest.raises(rl.UsageError, match="group_size"):
        rl.TrainConfig(env="toy-copy", group_size=None)
    with pytest.raises(rl.UsageError, match=r"^data must be given: add data=\.\.\."):
        rl.DPOConfig(model="m")
    made = toy_envs.CopyEnv(toy_envs.EnvOptions())
    with pytest.raises(rl.UsageError, match="is an environment object: give the class, CopyEnv"):
        rl.TrainConfig(env=made)
    with pytest.raises(rl.UsageError, match=r"dry_run .True. is for the command line"):
        rl.fit(rl.TrainConfig(env="toy-copy", dry_run=True))
    with pytest.raises(rl.UsageError, match="neither a subclass of TextEnv"):
        rl.TrainConfig(env=int)


def process_settings():
    return {
        "signals": [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)],
        "torch": torch.get_num_threads(),
        "bars": transformers_logging.is_progress_bar_enabled(),
        "environment": dict(os.environ),
    }


def test_a_run_is_the_commands_bit_for_bit_and_leaves_nothing(words, settings, tmp_path, capfd):
    torch.set_num_threads(torch.get_num_threads())
    # A thread of an earlier test may end meanwhile.
    threads, before = set(threading.enumerate()), process_settings()
    run = rl.fit(rl.TrainConfig(**settings, out=str(tmp_path / "python")))
    assert set(threading.enumerate()) <= threads
    assert process_settings() == before
    command = words(tmp_path / "line", steps=3, deterministic="true", eval__test_tasks=6)
    assert train_command(command) == 0
    assert equal(weights(run.folder), weights(tmp_path / "line"))
    same = rl.read_run(tmp_path / "line")
    assert (run.finished, run.steps, run.best_step) == (True, 3, same.best_step)
    assert (run.before, run.after) == (same.before, same.after)
    assert run.after.count == 6
    assert run.best == tmp_path / "python" / "checkpoints" / "best"
    assert [r["step"] for r in run.history if "reward" in r] == [1, 2, 3]
    assert run.metrics["reward"] == same.metrics["reward"]
    with pytest.raises(rl.UsageError, match="holds a run already"):
        rl.fit(rl.TrainConfig(**settings, out=str(tmp_path / "python")))
    longer = rl.fit(rl.TrainConfig(resume=tmp_path / "python", steps=4))
    assert (longer.steps, longer.folder) == (4, tmp_path / "python")


NOTEBOOK = """
import os, signal, sys
import rl
from toy_envs import CopyEnv

class MyEnv(CopyEnv): pass

class Stops(rl.Callback):
    def on_step(self, step, metrics, groups):
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)

try:
    rl.fit(rl.TrainConfig(env=MyEnv, model=sys.argv[1], out=sys.argv[2], steps=2, prompts=2,
        eval={"tasks": 0, "test_tasks": 0}, sampling={"max_tokens": 3}), callbacks=[Stops()])
except rl.Interrupted as stopped:
    call = str(stopped).partition("continue with ")[2]
    print(call)
    print(eval(call).steps)
"""


def test_a_class_of_a_notebook_is_passed_again(toy_model, tmp_path, capfd):
    """A program from standard input has no file, like a notebook."""
    out = tmp_path / "run"
    path = os.pathsep.join([str(HOME), str(HOME / "tests" / "helpers")])
    done = subprocess.run(
        [sys.executable, "-", str(toy_model), str(out)],
        input=NOTEBOOK,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    call = f"rl.fit(rl.TrainConfig(env=MyEnv, resume={str(out)!r}))"
    assert done.stdout.splitlines() == [call, "2"], done.stderr
    assert f"continue with {call} where MyEnv is defined\n" in done.stderr
    assert train_command([f"resume={out}", "steps=3"]) == 1
    assert (
        "error: environment '__main__:MyEnv' exists only in the notebook or program that defines "
        "it: there, give the class, env=MyEnv\n"
    ) in capfd.readouterr().err


async def test_no_watch_of_a_loop_outlives_a_run(settings, tmp_path, monkeypatch):
    monkeypatch.setattr(loop_watch, "TICK_S", 30.0)
    short = rl.TrainConfig(**settings | {"steps": 1}, out=str(tmp_path / "run"))
    before = set(threading.enumerate())
    rl.fit(short)
    assert set(threading.enumerate()) == before
    await rl.afit(dataclasses.replace(short, resume="auto", steps=2))
    assert set(threading.enumerate()) == before
    config = rl.EvaluateConfig(env="toy-copy", model=settings["model"], tasks=2)
    rl.evaluate(config)
    assert set(threading.enumerate()) == before


async def test_a_running_event_loop_goes_on(settings, tmp_path):
    assert rl.fit(rl.TrainConfig(**settings | {"steps": 1}, out=str(tmp_path / "a"))).steps == 1
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.001)

    ticking = asyncio.create_task(tick())
    run = await rl.afit(rl.TrainConfig(**settings | {"steps": 1}, out=str(tmp_path / "b")))
    ticking.cancel()
    assert ticks > 10
    assert equal(weights(run.folder, "step-000001"), weights(tmp_path / "a", "step-000001"))


async def test_a_cancelled_run_stops_cleanly_and_goes_on_later(settings, tmp_path):
    out = tmp_path / "run"
    config = rl.TrainConfig(**settings | {"steps": 10**6}, out=str(out))
    threads = set(threading.enumerate())
    running = asyncio.create_task(rl.afit(config))
    await a_step_of(out)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert set(threading.enumerate()) == threads
    run = rl.read_run(out)
    assert (run.finished, run.steps > 0) == (False, True)
    last = dataclasses.replace(config, steps=run.steps + 1, resume="auto")
    assert (await rl.afit(last)).steps == run.steps + 1


async def a_step_of(out):
    """Wait until a run has done a step."""
    for _ in range(6000):
        if (out / "metrics.jsonl").exists() and '"reward"' in (out / "metrics.jsonl").read_text():
            return
        await asyncio.sleep(0.02)
    raise TimeoutError


SCRIPT = """
import sys
import rl

class MyEnv(__import__("toy_envs").CopyEnv):
    pass

if __name__ == "__main__":
    try:
        rl.fit(rl.TrainConfig(env=MyEnv, model=sys.argv[1], out=sys.argv[2], steps=10**6, prompts=2,
                              eval={"tasks": 0, "test_tasks": 0}, sampling={"max_tokens": 3}))
    except rl.Interrupted as stopped:
        print(stopped.run.steps > 0, stopped.run.finished, stopped)
"""


def test_ctrl_c_stops_a_run_cleanly(toy_model, tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    out = tmp_path / "run"
    path = os.pathsep.join([str(HOME), str(HOME / "tests" / "helpers")])
    process = subprocess.Popen(
        [sys.executable, "script.py", str(toy_model), str(out)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell's background job ignores Ctrl-C, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    with process:
        try:
            asyncio.run(a_step_of(out))
            process.send_signal(signal.SIGINT)
            reported, errors = process.communicate(timeout=120)
        finally:
            process.kill()
    assert process.returncode == 0, errors
    steps = rl.read_run(out).steps
    assert reported == (
        f"True False stopped after step {steps}; continue with "
        f"rl.fit(rl.TrainConfig(resume={str(out)!r}))\n"
    )
    # The class was the script's: the command finds it there again.
    assert train_command([f"resume={out}", f"steps={steps}"]) == 0


def test_an_environment_is_given_as_a_class(settings, tmp_path):
    class Mine(toy_envs.CopyEnv):
        made = 0

        def __init__(self, options, services=None, *, extra=0):
            super().__init__(options, services)
            type(self).made += 1
            assert extra == 5

    given = {"name": functools.partial(Mine, extra=5), "max_turns": 2}
    config = rl.EvaluateConfig(
        env=given, model=settings["model"], tasks=3, sampling={"max_tokens": 3}, episodes=2
    )
    played = rl.evaluate(config)
    assert config.env.options.max_turns == 2
    assert (played.success.count, len(played.groups), played.folder) == (6, 3, None)
    assert [len(group.trajectories) for group in played.groups] == [2, 2, 2]


def test_an_evaluation_is_the_commands(settings, tmp_path, capsys):
    config = rl.EvaluateConfig(
        env="toy-copy",
        model=settings["model"],
        tasks=5,
        out=str(tmp_path / "a"),
        deterministic=True,
    )
    played = rl.evaluate(config)
    words = ["env=toy-copy", f"model={settings['model']}", "tasks=5", "deterministic=true"]
    assert evaluate_command([*words, f"out={tmp_path}/b"]) == 0
    # Episodes have their seconds beside their tokens.
    assert (tmp_path / "a" / "result.json").read_text() == (
        tmp_path / "b" / "result.json"
    ).read_text()
    first, second = (read_trajectories(tmp_path / d / "trajectories.jsonl.gz") for d in "ab")
    assert [t.segments[0].token_ids for t in first] == [t.segments[0].token_ids for t in second]
    assert played.folder == tmp_path / "a"
    assert played.success.rate == played.metrics["success"]


def test_supervised_learning_is_the_commands(settings, tmp_path, capsys):
    given = {"steps": 3, "demonstrations": 20, "batch_size": 4, "test_tasks": 0}
    made = rl.fit_sft(
        rl.SFTConfig(env="toy-copy", model=settings["model"], out=str(tmp_path / "a"), **given)
    )
    words = [f"{key}={value}" for key, value in given.items()]
    words += ["env=toy-copy", f"model={settings['model']}", f"out={tmp_path}/b"]
    assert sft_command(words) == 0
    assert equal(weights(made.folder, "last"), weights(tmp_path / "b", "last"))
    assert made.made == tmp_path / "a" / "checkpoints" / "last"
    assert [r["step"] for r in made.history] == [1, 2, 3]
    assert made.metrics["steps"] == 3


def test_a_file_is_trained_evaluated_resumed_and_replayed(words, tmp_path, monkeypatch, capfd):
    from rl.replay import main as replay

    (tmp_path / "mine.py").write_text("from toy_envs import CopyEnv\n\nclass Mine(CopyEnv): pass\n")
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "run"
    assert train_command(words(out, env="mine.py:Mine", env__max_turns=2, steps=2)) == 0
    assert rl.read_run(out).folder == out
    assert f'"env_id": "{tmp_path}/mine.py:Mine"' in (out / "config.json").read_text()
    monkeypatch.chdir("/")
    assert train_command([f"resume={out}", "steps=3"]) == 0
    assert replay([str(out)]) == 0
    (tmp_path / "mine.py").unlink()
    assert train_command([f"resume={out}", "steps=4"]) == 1
    assert f"there is no file {tmp_path}/mine.py\n" in capfd.readouterr().err


def test_a_folder_is_named_after_the_class(tmp_path):
    from rl.settings.run import run_path

    (tmp_path / "mine.py").write_text("from toy_envs import CopyEnv\n\nclass Mine(CopyEnv): pass\n")
    config = rl.TrainConfig(env=f"{tmp_path}/mine.py:Mine")
    assert run_path(config.out, config, "grpo") == Path("runs/Mine-grpo-0")


def test_importing_rl_loads_nothing_and_names_are_found_when_asked_for():
    code = (
        "import sys, rl; print(sorted({'torch', 'envs', 'chz', 'gymnasium'} & set(sys.modules)));"
        "print('fit' in dir(rl), rl.fit.__name__, rl.UsageError.__name__)"
    )
    environment = os.environ | {"PYTHONPATH": str(HOME)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "[]\nTrue fit UsageError\n"


def test_type_checkers_see_the_real_names():
    tree = ast.parse((HOME / "rl" / "__init__.py").read_text(encoding="utf-8"))
    (checked,) = [node for node in tree.body if isinstance(node, ast.If)]
    shown = {a.asname: f.module for f in checked.body for a in f.names}
    assert shown == rl._HOMES
    for name, module in rl._HOMES.items():
        assert getattr(rl, name) is getattr(sys.modules[module], name)


@pytest.mark.parametrize(
    ("name", "reported"),
    [
        ("fitt", "module 'rl' has no attribute 'fitt'. Did you mean 'fit'?"),
        ("qqqq", "module 'rl' has no attribute 'qqqq'"),
        ("__wrapped__", "module 'rl' has no attribute '__wrapped__'"),
    ],
)
def test_unknown_names_are_named(name, reported):
    with pytest.raises(AttributeError) as said:
        getattr(rl, name)
    assert str(said.value) == reported


def test_the_name_of_a_command_says_which_function_is_meant():
    code = "import rl\ntry: rl.sft\nexcept AttributeError as error: print(error)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(HOME)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout == "rl.sft is the module of a command: call rl.fit_sft, or import rl.sft\n"


STAGES = """
[[stage]]
name = "cold"
run = "sft"
env = "toy-copy"
steps = 9
demonstrations = 20
batch_size = 4
test_tasks = 0

[[stage]]
name = "both"
run = "merge"
models = "{cold},{cold}"
"""


def test_a_pipeline_runs_unfinished_stages(settings, tmp_path, capfd):
    (tmp_path / "stages.toml").write_text(STAGES)
    config = rl.PipelineConfig(
        file=str(tmp_path / "stages.toml"),
        settings={"model": settings["model"], "cold.steps": 2},
        out=str(tmp_path / "out"),
    )
    made = rl.run_pipeline(config)
    assert made == {
        "cold": tmp_path / "out" / "1-cold" / "checkpoints" / "last",
        "both": tmp_path / "out" / "2-both" / "checkpoints" / "last",
    }
    cold, both = (load_file(folder / "model.safetensors") for folder in made.values())
    assert equal(cold, both)
    assert len(rl.Result(made["cold"].parents[1], None, {}).history) == 2
    capfd.readouterr()
    assert rl.run_pipeline(config) == made
    assert capfd.readouterr().err.count("already done") == 2


async def test_preferences_are_learned_as_the_command_learns_them(settings, tmp_path, capfd):
    from rl.dpo import main as dpo_command

    rows = [
        {"prompt": str(n % 3), "chosen": str(n % 3), "rejected": str((n + 1) % 3)} for n in range(9)
    ]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    given = {"model": settings["model"], "data": str(tmp_path / "pairs.jsonl"), "batch_size": 2}
    given |= {"held_out": 0.4, "threads": 1}
    before = torch.get_num_threads()
    made = await rl.afit_dpo(rl.DPOConfig(**given, out=str(tmp_path / "a")))
    assert torch.get_num_threads() == before
    words = [f"{key}={value}" for key, value in given.items()]
    assert dpo_command([*words, f"out={tmp_path}/b"]) == 0
    torch.set_num_threads(before)
    assert equal(weights(made.folder, "last"), weights(tmp_path / "b", "last"))
    assert len(made.history) == made.metrics["steps"]


def test_callbacks_are_given_as_objects(settings, tmp_path):
    class Seen(rl.Callback):
        def __init__(self):
            self.steps = []

        def on_step(self, step, metrics, groups):
            self.steps.append((step, metrics["reward"], len(groups)))

    seen = Seen()
    run = rl.fit(rl.TrainConfig(**settings, out=str(tmp_path / "run")), callbacks=[seen])
    rewards = [r["reward"] for r in run.history if "reward" in r]
    assert seen.steps == [(step, reward, 6) for step, reward in enumerate(rewards, start=1)]
