"""The learner through its seam: memory by phase, speed, packing, and offloading."""

from __future__ import annotations

import asyncio
import importlib.util
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from agents.torch_thread import TorchThread
from benchmarks.gpu.device import peak_flops
from benchmarks.gpu.figures import Report, Setup
from benchmarks.gpu.timing import Memory, gib, synchronize
from benchmarks.gpu.workloads import SHAPES, make_group, model_folder
from rl.credit.algorithms import ALGORITHMS
from rl.learner.local import LocalLearner, open_local
from rl.learner.seam import Experience, Host, LearnerSpec, TrainingSpec
from rl.learner.settings import OptimizerConfig
from rl.planning.memory import MemoryPlan, Planner
from rl.rollout.trajectory import TrajectoryGroup
from rl.settings.lora import LoraConfig
from rl.settings.train import TrainConfig

ELSEWHERE = ("policy", "CUDA, fragments")
"""Parts of the memory plan that torch's allocator does not hold in these measurements."""


@dataclass(frozen=True)
class Case:
    """A training that is measured, with its goals and a peer's figures."""

    name: str
    size: str
    row: int = 16384
    episodes: int = 4
    updates: int = 3
    rank: int = 0
    max_gib: float | None = None
    min_mfu: float | None = None
    min_rate: float | None = None
    peer_memory: str = ""
    peer_speed: str = ""
    peer_mfu: str = ""

    def for_setup(self, setup: Setup) -> Case:
        """The case with its own numbers, or with those that a CPU computes in a second."""
        if not setup.small:
            return self
        return Case(self.name, self.size, row=64, episodes=2, updates=1, rank=self.rank)


FULL = Case(
    "0.6B full, 16k",
    "0.6B",
    max_gib=14,
    min_mfu=0.30,
    peer_speed="11.9k (prime-rl)",
    peer_mfu="0.111 (prime-rl); goal 0.45",
)
LORA = Case(
    "4B LoRA r16, 16k",
    "4B",
    episodes=2,
    updates=2,
    rank=16,
    max_gib=16,
    min_rate=8000,
    peer_memory="23.3 (prime-rl)",
    peer_speed="6.23k (prime-rl)",
    peer_mfu="0.217 (prime-rl)",
)


def full(setup: Setup, report: Report) -> None:
    """All weights of the 0.6B shape."""
    asyncio.run(_measure(FULL.for_setup(setup), setup, report))


def lora(setup: Setup, report: Report) -> None:
    """An adapter of the 4B shape."""
    if importlib.util.find_spec("peft") is None:
        report.skip(LORA.name, "peft is not installed: turnwise[lora]")
        return
    asyncio.run(_measure(LORA.for_setup(setup), setup, report))


async def _measure(case: Case, setup: Setup, report: Report) -> None:
    memory, row = Memory(setup), f"{case.name}:"

    def size(name: str, found: int | None, **about: Any) -> None:
        report(f"{row} {name}", gib(found), "GiB", note=_where(setup), **about)

    async with opened(case.size, setup, rank=case.rank, max_tokens=case.row) as learner:
        groups = [_rows(case, _shape(case.size, setup)[6])]
        size("memory after opening", memory.allocated())
        await learner.update(Experience(groups), learner.version + 1)
        size("peak of the first update", memory.peak())
        memory.restart()
        seconds = await _seconds(learner, groups, case.updates, setup)
        peak = memory.peak()
        size("peak of an update", peak)
        size("reserved at the peak", memory.reserved(), at_most=case.max_gib, peer=case.peer_memory)
        size("CUDA's context", memory.context())
        _speed(case, setup, report, seconds)
        await learner.offload()
        asleep = memory.allocated()
        size("memory after offload", asleep)
    with report.guard(f"{row} memory plan"):
        _against_plan(case, setup, report, peak, asleep)


def _rows(case: Case, vocabulary: int) -> TrajectoryGroup:
    """Episodes that fill a row: all tokens but 16 are trained."""
    return make_group(16, [case.row - 16] * case.episodes, vocabulary)


def _where(setup: Setup) -> str:
    return "" if setup.on_gpu else "only on a GPU"


def _shape(size: str, setup: Setup) -> tuple[int, ...]:
    return SHAPES["tiny" if setup.small else size]


def _against_plan(
    case: Case, setup: Setup, report: Report, peak: int | None, asleep: int | None
) -> None:
    """The plan of a run with the same settings, and the measured share of it."""
    plan = planned(case, setup)
    learn = sum(size for name, size in plan.learn.items() if name not in ELSEWHERE)
    weights = plan.generate["weights"]
    report(f"{case.name}: planned peak of an update", gib(learn), "GiB")
    for name, size, expected in (("update", peak, learn), ("offloaded", asleep, weights)):
        share = None if size is None else size / expected
        report(
            f"{case.name}: {name}, measured / planned",
            share,
            "",
            at_least=0.9,
            at_most=1.1,
            note=_where(setup),
        )


def planned(case: Case, setup: Setup) -> MemoryPlan:
    """The memory plan of a run with the settings of ``case``."""
    config = TrainConfig(
        env="math",
        model=str(model_folder(case.size, setup)),
        device=setup.device,
        dtype=dtype_of(setup),
        context_length=case.row,
        micro_batch_tokens=case.row,
        lora=LoraConfig(rank=case.rank),
        sampling={"max_tokens": 16, "slots": 1},
    )
    return Planner(config).plan(config)


def _speed(case: Case, setup: Setup, report: Report, seconds: float) -> None:
    tokens = case.row * case.episodes / seconds
    report(
        f"{case.name}: learner", tokens, "tokens/s", at_least=case.min_rate, peer=case.peer_speed
    )
    peak = peak_flops(setup)
    share = None if peak is None else tokens * flops_per_token(case, setup) / peak
    report(
        f"{case.name}: MFU",
        share,
        "",
        at_least=case.min_mfu,
        peer=case.peer_mfu,
        note="" if peak else "the device's rate is not known",
    )


def flops_per_token(case: Case, setup: Setup) -> float:
    """Useful operations for each token, without those that checkpointing repeats.

    6 for each weight (4 with an adapter: the base's weights have no gradient). In each layer, 6 for
    each number of a query and position of the row: on average, a token reads half of the row.
    """
    width, inner, layers, heads, kv_heads, head, vocabulary, _ = _shape(case.size, setup)
    attention = 2 * width * head * (heads + kv_heads)
    weights = layers * (attention + 3 * width * inner) + vocabulary * width
    return (4 if case.rank else 6) * weights + 6 * layers * case.row * heads * head


async def _seconds(
    learner: LocalLearner, groups: Sequence[TrajectoryGroup], updates: int, setup: Setup
) -> float:
    """Median seconds of an update."""
    times = []
    for _ in range(updates):
        synchronize(setup)
        start = time.perf_counter()
        await learner.update(Experience(groups), learner.version + 1)
        synchronize(setup)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


@asynccontextmanager
async def opened(
    size: str, setup: Setup, *, rank: int = 0, max_tokens: int, packing: bool = True
) -> AsyncIterator[LocalLearner]:
    """A learner with random weights in a shape."""
    folder = model_folder(size, setup)
    Memory(setup).restart()
    training = TrainingSpec(
        ALGORITHMS["grpo"],
        OptimizerConfig(),
        temperature=1.0,
        micro_batch_tokens=max_tokens,
        packing=packing,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    adapter = LoraConfig(rank=rank)
    dtype = dtype_of(setup)
    spec = LearnerSpec(str(folder), tokenizer, setup.device, dtype, adapter, 0, training)
    thread = TorchThread()
    try:
        yield await open_local(spec, Host(thread, lambda: None))
    finally:
        await thread.close()


def dtype_of(setup: Setup) -> str:
    """The type of the weights."""
    return "float32" if setup.small else "bfloat16"


def packing(setup: Setup, report: Report) -> None:
    """Packed rows against padded ones, for ragged completions and for long shared prompts."""
    drawn = np.random.default_rng(0)
    ragged = np.clip(drawn.lognormal(7.0, 0.8, 16), 64, 8192).astype(int).tolist()
    # prompt, completions of each group
    works = {"ragged": (128, [ragged[:8], ragged[8:]]), "shared prompts": (2048, [[384] * 8] * 2)}
    if setup.small:
        works = {"ragged": (8, [[9, 30, 14, 5]]), "shared prompts": (32, [[8] * 4])}
    vocabulary = _shape("0.6B", setup)[6]
    for name, (prompt, completions) in works.items():
        with report.guard(f"0.6B, {name}"):
            groups = [make_group(prompt, c, vocabulary, i) for i, c in enumerate(completions)]
            asyncio.run(_packing(name, groups, setup, report))


async def _packing(
    name: str, groups: Sequence[TrajectoryGroup], setup: Setup, report: Report
) -> None:
    tokens = sum(len(s.token_ids) for g in groups for t in g.trajectories for s in t.segments)
    rates = {}
    for kind, packs in (("padded", False), ("packed", True)):
        rates[kind] = tokens / await _update_seconds(groups, packs, setup)
        report(f"0.6B, {name}, {kind}", rates[kind], "tokens/s")
    report(
        f"0.6B, {name}: packed / padded",
        rates["packed"] / rates["padded"],
        "",
        at_least=None if setup.small else 1.0,
        peer="1.31 (TRL, 1.7B)",
    )


async def _update_seconds(groups: Sequence[TrajectoryGroup], packs: bool, setup: Setup) -> float:
    limit = 256 if setup.small else 16384
    async with opened("0.6B", setup, max_tokens=limit, packing=packs) as learner:
        # The first update compiles kernels and makes the moments.
        await learner.update(Experience(groups), learner.version + 1)
        return await _seconds(learner, groups, 1 if setup.small else 3, setup)


def offload(setup: Setup, report: Report) -> None:
    """Seconds in which the learner's state leaves the device and comes back."""
    asyncio.run(_offload(setup, report))


async def _offload(setup: Setup, report: Report) -> None:
    case = Case("0.6B", "0.6B", row=1024, episodes=2).for_setup(setup)
    groups = [_rows(case, _shape(case.size, setup)[6])]
    memory = Memory(setup)
    async with opened(case.size, setup, max_tokens=case.row) as learner:
        await learner.update(Experience(groups), learner.version + 1)
        for name in ("first", "next"):
            before = memory.allocated()
            times = []
            for move in (learner.offload, learner.onload):
                synchronize(setup)
                start = time.perf_counter()
                await move()
                synchronize(setup)
                times.append(time.perf_counter() - start)
                if move == learner.offload:
                    freed = None if before is None else before - (memory.allocated() or 0)
            if name == "first":
                report("0.6B: moved", gib(freed), "GiB", note=_where(setup))
            for what, seconds in zip(("offload", "onload"), times, strict=True):
                report(f"0.6B: {name} {what}", seconds, "s")
                rate = None if freed is None else freed / seconds / 1e9
                report(f"0.6B: {name} {what}, rate", rate, "GB/s", note=_where(setup))
        await learner.update(Experience(groups), learner.version + 1)
        report("0.6B: updates after onload", 1, at_least=1)
