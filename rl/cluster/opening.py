"""Opens the cluster that a run has chosen."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from rl.cluster.cluster import THIS_MACHINE, Cluster
from rl.cluster.settings import ClusterChoice, JoinConfig, LocalConfig
from rl.errors import UsageError


@asynccontextmanager
async def open_cluster(
    choice: ClusterChoice, ranks: Sequence[int], servers: Sequence[int], collectors: int = 0
) -> AsyncIterator[Cluster]:
    """Reserve room for a run's processes, until the context ends.

    Args:
        choice: the cluster.
        ranks: number of GPUs of each rank of the learner; empty if it is in the run's process.
        servers: number of GPUs of each server that the policy starts.
        collectors: number of collectors.

    Raises:
        UsageError: Ray is not installed, the cluster cannot be reached, or has too little room.
    """
    if isinstance(choice.settings, LocalConfig):
        yield THIS_MACHINE
        return
    if isinstance(choice.settings, JoinConfig):
        from rl.cluster.joined import open_joined  # loads torch

        with open_joined(choice.settings) as joined:
            yield joined
        return
    if importlib.util.find_spec("ray") is None:
        raise UsageError("cluster=ray needs Ray: pip install 'turnwise[ray]'")
    from rl.cluster.ray_cluster import open_ray  # loads Ray

    async with open_ray(choice.settings, ranks, servers, collectors) as cluster:
        yield cluster
