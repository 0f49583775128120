"""The learner of several ranks, as the run's process sees it; see ``rl.learner.seam.Learner``."""

from __future__ import annotations

import asyncio
import time
from asyncio import Task
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import torch
from torch import Tensor

from rl.errors import RunFailure
from rl.learner.local import LocalLearner
from rl.learner.ranks.messages import OpenPart, RankSpec
from rl.learner.ranks.process import RankGroup, start_here
from rl.learner.ranks.processes import RankProcesses
from rl.learner.seam import (
    Experience,
    Host,
    LearnerLost,
    LearnerSpec,
    ModelFacts,
    TokenRecord,
)

SHARED_MEMORY = Path("/dev/shm")
"""Folder in memory, through which weights travel between processes where it exists."""
SAVED_EVERY_S = 0.2
"""Seconds between questions whether a checkpoint is written."""

StartRanks = Callable[[int], RankGroup]
"""Starts a number of ranks, and blocks until they are connected."""


async def open_ranks(
    spec: LearnerSpec,
    host: Host,
    ranks: int,
    timeout_s: float,
    *,
    start: StartRanks = start_here,
    here: bool = True,
) -> RankedLearner:
    """Open a learner of several processes; see ``seam.OpenLearner``.

    Args:
        spec: the learner's settings.
        host: the resources of the run's process.
        ranks: number of processes.
        timeout_s: seconds without progress after which the learner is lost.
        start: starts the processes.
        here: whether they use this machine's GPUs.

    Raises:
        LearnerLost: a rank ended while it started.
        ValueError: the settings cannot be used with ranks.
    """
    check_ranks(spec, ranks, here=here)

    def part(device: str) -> OpenPart:
        return partial(LocalLearner, replace(spec, device=device))

    dtype = "float32" if spec.lora.rank else spec.dtype
    group = await asyncio.to_thread(start, ranks)
    processes = RankProcesses(group, host.on_progress, timeout_s)
    cores = await host.thread.do(torch.get_num_threads)
    return RankedLearner(processes, await open_parts(processes, part, spec.device, dtype, cores))


async def open_parts(
    processes: RankProcesses,
    part: Callable[[str], OpenPart],
    device: str,
    dtype: str,
    cores: int,
) -> Any:
    """Open the learners of started ranks. They are ended if one fails.

    Args:
        processes: the ranks.
        part: makes the learner of a rank from the name of its device.
        device: the device of the whole learner. For a GPU, each rank has its own.
        dtype: the type in which the model computes.
        cores: number of threads, on a CPU, that the ranks divide.

    Returns:
        The facts that rank 0 reports.

    Raises:
        LearnerLost: a rank ended while it started.
    """
    group, size = processes.group, len(processes.group.ranks)
    on_gpus = torch.device(device).type == "cuda"
    own = [f"cuda:{group.devices[rank]}" if on_gpus else device for rank in range(size)]
    specs = [
        RankSpec(
            *(part(own[rank]), own[rank], dtype, rank, size, group.rendezvous, processes.timeout_s),
            num_threads=group.num_threads or max(1, cores // size),
            deterministic=torch.are_deterministic_algorithms_enabled(),
        )
        for rank in range(size)
    ]
    try:
        return await processes.call("open", [(spec,) for spec in specs])
    except BaseException:
        await processes.close()
        raise


def check_ranks(spec: LearnerSpec, ranks: int, *, here: bool = True) -> None:
    """Check that a learner's settings can be used with ``ranks`` processes.

    Args:
        spec: the learner's settings.
        ranks: number of processes.
        here: whether all of them use this machine's GPUs.

    Raises:
        ValueError: they cannot.
    """
    if here:
        check_gpus(spec.device, ranks)
    training = spec.training
    for key, given, only in (
        ("lora.base_bits", spec.lora.base_bits, 0),
        ("optimizer.state_bits", training.optimizer.state_bits if training else 32, 32),
        ("memory.offload_scorers", bool(training and training.memory.offload_scorers), False),
    ):
        if given != only:
            raise ValueError(f"{key} ({given}) must be {only} with learner.ranks={ranks}")
    if training is None:
        raise ValueError(f"learner.ranks ({ranks}) must be 1 without training")


def check_gpus(device: str, ranks: int) -> None:
    """Check that this machine has a GPU for each rank, if they compute on GPUs.

    Raises:
        ValueError: it has fewer.
    """
    found = torch.cuda.device_count()
    if torch.device(device).type == "cuda" and ranks > found:
        raise ValueError(f"learner.ranks ({ranks}) must be at most the number of GPUs, {found}")


@dataclass(frozen=True)
class RankedWeights:
    """One version of the weights, which the ranks collect when they are asked."""

    processes: RankProcesses
    version: int

    async def tensors(self, *, complete: bool = False) -> Mapping[str, Tensor]:
        """The weights by name, on the host; see ``seam.WeightHandle.tensors``."""
        if not self.processes.group.shares_files:
            weights: Mapping[str, Tensor] = await self.processes.call("tensors", (complete, None))
            return weights
        folder = str(SHARED_MEMORY) if SHARED_MEMORY.is_dir() else gettempdir()
        path = Path(await self.processes.call("tensors", (complete, folder)))
        return await asyncio.to_thread(_taken, path)


def _taken(path: Path) -> dict[str, Tensor]:
    """The tensors in a file, which is removed. Their memory is that of the file."""
    try:
        weights: dict[str, Tensor] = torch.load(path, mmap=True, weights_only=True)
    finally:
        path.unlink()
    return weights


class RankedLearner:
    """Learner of several ranks, each a process; see ``seam.Learner``.

    Calls reach the ranks one after the other. A rank that ends, or makes no progress in time, ends
    all of them: the learner is then lost, and a new one continues from a checkpoint.
    """

    def __init__(self, processes: RankProcesses, facts: ModelFacts) -> None:
        self.processes = processes
        self.facts = facts

    @property
    def version(self) -> int:
        """The version of the current weights."""
        return self.processes.version

    async def update(self, experience: Experience, version: int) -> dict[str, float]:
        """Make ``version`` of the weights; see ``seam.Learner.update``."""
        metrics: dict[str, float] = await self.processes.call("update", (experience, version))
        return metrics

    async def token_record(self, version: int) -> TokenRecord | None:
        """What an update computed about each token; see ``seam.RecordsTokens``."""
        record: TokenRecord | None = await self.processes.call("token_record", (version,))
        return record

    async def score(
        self, token_ids: Sequence[int], temperature: float, supports: Sequence[Sequence[int]] = ()
    ) -> Sequence[float]:
        """The log-probability of each token except the first; see ``seam.Learner.score``."""
        scores: list[float] = await self.processes.call("score", (token_ids, temperature, supports))
        return scores

    async def tolerance(self, seed: int) -> float:
        """Largest difference from rounding, in nats; see ``seam.Learner.tolerance``."""
        tolerance: float = await self.processes.call("tolerance", (seed,))
        return tolerance

    async def weights(self, version: int) -> RankedWeights:
        """A handle of the weights with this version; see ``seam.Learner.weights``."""
        if version != self.version:
            raise ValueError(f"version ({version}) is not the learner's, {self.version}")
        return RankedWeights(self.processes, version)

    async def save(
        self, folder: Path, state: Mapping[str, Any] | None = None, *, resumable: bool = False
    ) -> None:
        """Write a checkpoint, which any number of ranks can load; see ``seam.Learner.save``."""
        await self.processes.call("save", (folder, state, resumable))
        await self._saved(folder)

    async def start_saving(
        self, folder: Path, state: Mapping[str, Any] | None = None
    ) -> Task[None]:
        """Begin a resumable checkpoint; see ``seam.SavesMeanwhile``."""
        await self.processes.call("save", (folder, state, True))
        return asyncio.create_task(self._saved(folder))

    async def _saved(self, folder: Path) -> None:
        """Wait until the ranks have written a checkpoint."""
        started = time.monotonic()
        while not await self.processes.call("saved", ()):
            if time.monotonic() - started > self.processes.timeout_s:
                lost = LearnerLost(
                    f"the learner's ranks did not write {folder} within "
                    f"{self.processes.timeout_s:g} s (learner.timeout_s)"
                )
                self.processes.end(lost)
                raise lost
            await asyncio.sleep(SAVED_EVERY_S)
        if not folder.exists():
            raise RunFailure(
                f"the checkpoint {folder} is not seen here, because rank 0 wrote it on another "
                "machine: give out=FOLDER on a file system that all machines share"
            )

    async def load(self, folder: Path, version: int | None = None) -> dict[str, Any]:
        """Continue from a checkpoint; see ``seam.Learner.load``."""
        state: dict[str, Any] = await self.processes.call("load", (folder, version))
        return state

    async def offload(self) -> None:
        """Free device memory that only updates need; see ``seam.Learner.offload``."""
        await self.processes.call("offload", ())

    async def onload(self) -> None:
        """Allocate the freed memory again; see ``seam.Learner.onload``."""
        await self.processes.call("onload", ())

    async def close(self) -> None:
        """End all ranks. A repeated call does nothing."""
        await self.processes.close()
