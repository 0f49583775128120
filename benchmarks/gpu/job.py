"""The main job's kind: a 0.6B shape learns multi-turn code, with staleness 1, within 24 GiB."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

import envs
import rl
from benchmarks.gpu.figures import Report, Setup, one_line
from benchmarks.gpu.timing import Memory, gib
from benchmarks.gpu.workloads import model_folder
from rl.planning.memory import Planner
from rl.settings.finetuning import SFTConfig
from rl.settings.train import TrainConfig
from tools.sandbox import make_sandbox
from tools.sandbox.errors import SandboxUnavailable

ENV = {"name": "code-sandbox", "max_turns": 3, "hide": "constant"}
"""Short generated tasks, in which a first attempt has to guess a number."""
SHAPING = "overlong(max_length=384, cache=384)"
"""Rewards that differ in length too, so that each step has a gradient after a short warm start."""
LIMIT_GIB = 24.0
STEPS, SECONDS = 20, 50.0
IDLE = 0.1
TEXTS = 200
"""Tasks from whose texts the tokenizer is made."""


def run(setup: Setup, report: Report) -> None:
    where = sandbox(setup)
    if isinstance(where, str):
        report.skip("job", where)
        return
    model = warm_start(setup, where, report)
    small = {"steps": 2, "prompts": 2, "group_size": 2} if setup.small else {}
    config = job_config(setup, model, {"staleness": 1, **where, **small}, "job")
    plan = Planner(config).plan(config)
    memory = Memory(setup)
    memory.restart()
    if setup.on_gpu:
        device = torch.device(setup.device)
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, LIMIT_GIB * 2**30 / total), device)
    done = rl.fit(config)
    shutil.rmtree(done.folder / "checkpoints", ignore_errors=True)
    # Learner and policy compute at the same time.
    planned = max(
        sum(v for k, v in phase.items() if k != "CUDA, fragments")
        for phase in (plan.learn, plan.generate)
    )
    peak = memory.peak()
    steps = [line for line in done.history if "time/wall" in line and "loss" in line]
    report("steps", len(steps), at_least=config.steps, note=f"in at most {SECONDS:.0f} s")
    report("peak of tensors", gib(peak), "GiB", note="" if setup.on_gpu else "only on a GPU")
    report(
        "peak of tensors, measured / planned", None if peak is None else peak / planned, at_most=1.1
    )
    report("reserved at the peak", gib(memory.reserved()), "GiB", at_most=LIMIT_GIB)
    _times(steps[1:] or steps, report, setup)


def sandbox(setup: Setup) -> Mapping[str, Any] | str:
    """Settings of a sandbox that works here, or the reason why none does."""

    async def start(backend: str) -> None:
        async with make_sandbox(backend):
            pass

    problem = ""
    # Without its client, docker is no backend, and "auto" ends there.
    for backend in ("auto", "landlock"):
        try:
            asyncio.run(start(backend))
        except (SandboxUnavailable, ImportError) as error:
            problem = problem or one_line(error)
        else:
            return {"env.sandbox": backend}
    if setup.allow_unsafe:
        return {"env.sandbox": "unsafe-local", "allow_unsafe": True}
    return f"no sandbox works here (--allow-unsafe uses none): {problem}"


def warm_start(setup: Setup, where: Mapping[str, Any], report: Report) -> Path:
    """A model that answers in the environment's form, after a short supervised training.

    The part that comes first trains it.
    """
    out = setup.work / "warm-start"
    if (saved := out / "checkpoints" / "last").is_dir():
        return saved
    config = SFTConfig(
        env={**ENV, **_of_env(where)},
        allow_unsafe="allow_unsafe" in where,
        model=str(model_folder("0.6B", setup, _texts())),
        device=setup.device,
        demonstrations=20 if setup.small else 200,
        steps=3 if setup.small else 60,
        test_tasks=0,
        optimizer={"lr": 1e-3 if setup.small else 3e-4},
        max_seconds=15.0,
        out=str(out),
    )
    made = rl.fit_sft(config)
    report(
        "warm start: last loss",
        made.metrics["last_loss"],
        "nats",
        note=f"{made.metrics['steps']} steps, {made.metrics['seconds']:.0f} s",
    )
    assert made.made is not None
    return made.made


def _texts() -> Sequence[tuple[str, str]]:
    """Descriptions of tasks, with programs that solve them."""
    env = envs.make(**ENV)
    prompts = [env.tasks[i].prompt for i in range(TEXTS)]
    return [(prompt, env.gold_policy()(prompt)) for prompt in prompts]


def job_config(setup: Setup, model: Path, changes: Mapping[str, Any], name: str) -> TrainConfig:
    """The settings of a run of the main job's kind."""
    small = {"sampling.max_tokens": 16, "sampling.slots": 4} if setup.small else {}
    words = {
        "model": str(model),
        "device": setup.device,
        "steps": STEPS,
        "prompts": 8,
        "group_size": 8,
        "context_length": 1024,
        "sampling.max_tokens": 128,
        "sampling.slots": 32,
        "eval.tasks": 0,
        "eval.test_tasks": 0,
        "save_every": 10_000,
        "shaping": SHAPING,
        "max_seconds": SECONDS,
        "plan.gpu_gb": LIMIT_GIB,
        "out": str(setup.work / name),
        **small,
        **{key: value for key, value in changes.items() if not key.startswith("env.")},
    }
    return TrainConfig(env={**ENV, **_of_env(changes)}, **words)


def _of_env(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {k.removeprefix("env."): v for k, v in changes.items() if k.startswith("env.")}


def _times(steps: Sequence[Mapping[str, Any]], report: Report, setup: Setup) -> None:
    """Shares of the ledger, and tokens a second, over all steps but the first."""
    wall = sum(step["time/wall"] for step in steps)
    tokens = sum(step["num_tokens"] for step in steps)
    report("sampled and learned", tokens / wall, "tokens/s")
    goal = None if setup.small else IDLE
    for lane, goal_of in (("policy", goal), ("rollout", None), ("learner", None)):
        idle = sum(step.get(f"time/{lane}/idle", 0.0) for step in steps) / wall
        report(f"{lane}: idle share", idle, at_most=goal_of)
    waits = sum(step.get("time/learner/sampling", 0.0) for step in steps) / wall
    report("learner: share of waiting for episodes", waits)
