"""The started processes of a learner's ranks, and their start on this machine."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rl.cluster.child import ChildProcess, LocalChild


def _nothing() -> None:
    """Free nothing."""


@dataclass(frozen=True)
class RankGroup:
    """The started processes of a learner, which do not know each other yet."""

    ranks: Sequence[ChildProcess]
    rendezvous: str
    """Where the ranks find each other, as ``torch.distributed.init_process_group`` takes it."""
    devices: Sequence[int]
    """The number of each rank's GPU, among those that its process sees."""
    shares_files: bool
    """Whether rank 0 and this process see the same folder in memory."""
    num_threads: int = 0
    """Number of threads of a rank on a CPU; 0 for its share of the run's threads."""
    free: Callable[[], None] = _nothing
    """Called after the processes have ended."""


def start_here(size: int) -> RankGroup:
    """Start ``size`` ranks on this machine. On GPUs, rank ``i`` has the GPU with number ``i``."""
    folder = Path(tempfile.mkdtemp(prefix="turnwise-ranks-"))
    # The ranks are on this machine, whatever its host name resolves to.
    environment = {} if "GLOO_SOCKET_IFNAME" in os.environ else {"GLOO_SOCKET_IFNAME": "lo"}
    return RankGroup(
        ranks=[
            LocalChild(
                *(f"rank {rank} of the learner", "rl.learner.ranks.rank", rank),
                *(folder / f"rank-{rank}.log", environment),
            )
            for rank in range(size)
        ],
        rendezvous=f"file://{folder / 'rendezvous'}",
        devices=range(size),
        shares_files=True,
        free=partial(shutil.rmtree, folder, ignore_errors=True),
    )
