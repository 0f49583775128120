"""vLLM in the learner's process, on the learner's GPU, where it is installed."""

from __future__ import annotations

import importlib.util
import shutil
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import rl
from agents.serving.policy import ServerPolicy
from benchmarks.gpu.figures import Report, Setup
from benchmarks.gpu.job import job_config, sandbox, warm_start
from rl.settings.train import TrainConfig

SYNC_S = 0.1
CHANGES = {"steps": 5, "plan.gpu_gb": 0.0}
POLICIES = (
    {"name": "vllm-engine", "transfer": "ipc", "sleep": True, "gpu_memory": 0.4},
    # For releases whose engine lacks what vllm-engine needs.
    {"name": "vllm-server", "transfer": "ipc", "sleep": True, "gpu_memory": 0.4},
)


def run(setup: Setup, report: Report) -> None:
    if importlib.util.find_spec("vllm") is None:
        report.skip("vLLM", "vLLM is not installed in this interpreter")
        return
    if not setup.on_gpu:
        report.skip("vLLM", "sleep and transfer between tensors need a GPU")
        return
    where = sandbox(setup)
    if isinstance(where, str):
        report.skip("vLLM", where)
        return
    model = warm_start(setup, where, report)
    for policy in POLICIES:
        with report.guard(f"0.6B, {policy['name']}"):
            _measure(
                policy,
                job_config(setup, model, {**CHANGES, "policy": policy, **where}, policy["name"]),
                report,
            )
            return


def _measure(policy: Mapping[str, Any], config: TrainConfig, report: Report) -> None:
    """A short run with a policy. The first policy that works is measured alone."""
    seconds: dict[str, list[float]] = {"sleep": [], "wake": []}
    with (
        mock.patch.object(ServerPolicy, "sleep", _timed(ServerPolicy.sleep, seconds["sleep"])),
        mock.patch.object(ServerPolicy, "wake", _timed(ServerPolicy.wake, seconds["wake"])),
    ):
        done = rl.fit(config)
    shutil.rmtree(done.folder / "checkpoints", ignore_errors=True)
    name = f"0.6B, {policy['name']}:"
    for what, values in seconds.items():
        report(f"{name} {what}", statistics.median(values) if values else None, "s")
    _syncs(name, [line for line in done.history if "time/wall" in line], report)


def _timed(
    method: Callable[..., Awaitable[None]], seconds: list[float]
) -> Callable[..., Awaitable[None]]:
    """``method``, with the seconds of each call added to a list."""

    async def timed(policy: Any) -> None:
        start = time.perf_counter()
        await method(policy)
        seconds.append(time.perf_counter() - start)

    return timed


def _syncs(name: str, steps: Sequence[Mapping[str, Any]], report: Report) -> None:
    """Updates of vLLM's weights, and its speed."""
    loads = [step["sync/load_s"] for step in steps if "sync/load_s" in step]
    median = statistics.median(loads) if loads else None
    report(f"{name} weight update", median, "s", at_most=SYNC_S, peer="0.067 (torchtitan)")
    proved = [step.get("sync/tensors_compared", 0.0) for step in steps if "sync/load_s" in step]
    report(f"{name} tensors proved equal by digest", min(proved, default=None), at_least=1)
    tokens = sum(step["num_tokens"] for step in steps[1:])
    generating = sum(step.get("time/policy/generate", 0.0) for step in steps[1:])
    report(f"{name} sampled", tokens / generating if generating else None, "tokens/s")
