"""``cluster=ray``: Ray reserves room for all processes of a run, and places them.

Ray holds one placement group for a run, with a bundle for each rank of the learner, each server of
the policy, each collector and each sandbox server, so nothing is placed twice, and nothing starts
before there is room for all. What the processes say to each other does not go through Ray: the run
calls its ranks and collectors by their connections, and its servers by HTTP, as on one machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from agents.serving import ServerGone, ServerProcess
from rl.cluster.cluster import Cluster
from rl.cluster.ray_actors import CollectorActor, RankActor, ServerActor, in_words, result_of
from rl.cluster.ray_sandboxes import sandboxes_on
from rl.cluster.settings import RayConfig
from rl.cluster.shipping import Shipping
from rl.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    import aiohttp

    from agents.serving import EngineClient, WeightPublisher
    from rl.cluster.child import ChildProcess
    from rl.learner.ranks.process import RankGroup

_REACH_S = 10.0
"""Seconds in which a machine of the cluster must accept a connection."""
_KEEP_GUARDS = {"RAY_kill_child_processes_on_worker_exit": "false"}
"""Ray would kill the guards (:mod:`agents.serving.orphans`) of an actor that it ends."""
CLOSE_S = 10.0
"""Seconds within which an actor ends its server, before it is killed."""


@asynccontextmanager
async def open_ray(
    settings: RayConfig, ranks: Sequence[int], servers: Sequence[int], collectors: int
) -> AsyncIterator[RayCluster]:
    """Connect to Ray or start it, and reserve room; see ``rl.cluster.opening.open_cluster``.

    Raises:
        UsageError: Ray cannot be reached, or has too little room.
    """
    bundles = [_bundle(settings.rank_cpus, gpus) for gpus in ranks]
    bundles += [_bundle(settings.server_cpus, gpus) for gpus in servers]
    bundles += [_bundle(settings.collector_cpus, 0)] * collectors
    bundles += [_bundle(settings.sandbox_cpus, 0)] * settings.sandboxes
    started = await asyncio.to_thread(_connect, settings, bundles)
    try:
        group = await asyncio.to_thread(_reserve, settings, bundles)
        cluster = RayCluster(settings, group, len(ranks), len(servers))
        own = range(len(bundles) - settings.sandboxes, len(bundles))
        try:
            async with sandboxes_on(cluster.actor, own, settings.start_s) as cluster.sandboxes:
                yield cluster
        finally:
            if group is not None:
                await asyncio.to_thread(remove_placement_group, group)
    finally:
        if started:
            await asyncio.to_thread(ray.shutdown)


def _bundle(cpus: float, gpus: int) -> dict[str, float]:
    return {"CPU": cpus} | ({"GPU": float(gpus)} if gpus else {})


def _connect(settings: RayConfig, bundles: Sequence[dict[str, float]]) -> bool:
    """Connect to Ray, or start it. Returns whether this call did either."""
    if ray.is_initialized():
        return False
    if settings.address not in ("", "auto"):
        _check_listens(settings.address)
    options: dict[str, Any] = {"address": settings.address} if settings.address else {}
    if not settings.address:
        # Reservations are for placement: a machine computes more than its cores' worth if asked.
        cpus = sum(bundle["CPU"] for bundle in bundles)
        options = {
            "address": "local",
            "num_cpus": max(os.cpu_count() or 1, int(cpus) + 1),
            "include_dashboard": False,
        }
    # Ray would say that it leaves SIGTERM to the run, and that its cluster has a token.
    logging.getLogger("ray").setLevel(logging.ERROR)
    # What this process can import, its actors can import.
    paths = os.pathsep.join(path for path in sys.path if path)
    try:
        ray.init(
            log_to_driver=False,
            configure_logging=False,
            runtime_env={"env_vars": {"PYTHONPATH": paths} | _KEEP_GUARDS},
            **options,
        )
    except (ConnectionError, RuntimeError, RayError, ValueError) as error:
        where = f"the cluster at {settings.address}" if settings.address else "this machine"
        line = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UsageError(f"Ray does not start on {where}: {line}") from error
    return True


def _check_listens(address: str) -> None:
    """Check that something listens at the address: Ray itself would try for minutes.

    Raises:
        UsageError: it is no address, or nothing listens there.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"cluster.address ({address}) must be HOST:PORT, auto or empty")
    try:
        socket.create_connection((host, int(port)), _REACH_S).close()
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"cluster.address ({address}): no Ray cluster answers there ({error}); give the "
            "address that `ray start --head` printed, or leave it empty to start Ray here"
        ) from error


def _reserve(settings: RayConfig, bundles: Sequence[dict[str, float]]) -> PlacementGroup | None:
    """Room for all bundles, or None if there are none."""
    if not bundles:
        return None
    group = placement_group(list(bundles), strategy=settings.strategy)
    if not group.wait(timeout_seconds=settings.start_s):
        remove_placement_group(group)
        needed, free = _total(bundles), ray.available_resources()
        has = ", ".join(f"{free.get(kind, 0):g} {kind}" for kind in needed)
        wants = ", ".join(f"{count:g} {kind}" for kind, count in needed.items())
        raise UsageError(
            f"cluster=ray has no room after {settings.start_s:g} s: the run needs {wants} in "
            f"{len(bundles)} parts, and {has} are free; give fewer learner.ranks, "
            "policy.replicas or collectors, or a smaller cluster.rank_cpus or cluster.server_cpus"
        )
    return group


def _total(bundles: Sequence[dict[str, float]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for bundle in bundles:
        for kind, count in bundle.items():
            total[kind] = total.get(kind, 0) + count
    return total


class RayCluster(Cluster):
    """The machines of a Ray cluster, with room reserved for one run.

    Args:
        settings: the cluster's settings.
        group: the reserved room: first the ranks, then the policy's servers, then the collectors,
            then the sandboxes.
        ranks: number of ranks.
        servers: number of servers.
    """

    assigns_gpus = True

    def __init__(
        self, settings: RayConfig, group: PlacementGroup | None, ranks: int, servers: int
    ) -> None:
        self._settings = settings
        self._group = group
        self._ranks = ranks
        self._servers = servers
        self._shipping: Shipping | None = None

    def start_ranks(self, size: int) -> RankGroup:
        """Start ``size`` ranks, each as an actor; see :meth:`Cluster.start_ranks`."""
        from rl.cluster.ray_ranks import start_ranks

        actors = [self.actor(RankActor, number) for number in range(size)]
        return start_ranks(actors, self._settings)

    def start_collector(self, number: int, printed: Path) -> ChildProcess:
        """Start a collector as an actor; see :meth:`Cluster.start_collector`."""
        from rl.cluster.ray_ranks import start_collector

        actor = self.actor(CollectorActor, self._ranks + self._servers + number)
        return start_collector(actor, number, self._settings)

    def server(self, number: int, process: ServerProcess) -> RayServer:
        """What starts the policy's server with this number, as a child of an actor."""
        return RayServer(self, self._ranks + number, process, self._settings.start_s)

    def publisher(self, publisher: WeightPublisher) -> WeightPublisher:
        """A publisher that also brings the weights to machines that do not see its folder."""
        self._shipping = Shipping(publisher, self._settings.start_s, deltas=self._settings.deltas)
        return self._shipping

    @property
    def shipping(self) -> Shipping:
        """The publisher of the weights."""
        assert self._shipping is not None, "publisher() comes before a server's start"
        return self._shipping

    def actor(self, kind: type[Any], bundle: int, *args: Any) -> Any:
        """Start an actor in a part of the reserved room."""
        assert self._group is not None
        resources = self._group.bundle_specs[bundle]
        strategy = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=bundle
        )
        options = ray.remote(kind).options(
            num_cpus=resources["CPU"],
            num_gpus=resources.get("GPU", 0),
            scheduling_strategy=strategy,
            max_restarts=0,
        )
        return options.remote(*args)


class RayServer:
    """A server that an actor starts where Ray placed it; see ``agents.serving.EngineRunner``."""

    def __init__(
        self, cluster: RayCluster, bundle: int, process: ServerProcess, start_s: float
    ) -> None:
        self._cluster = cluster
        self._bundle = bundle
        self._process = process
        self._start_s = start_s
        self._actor: Any = None
        self._end: asyncio.Future[str] | None = None
        self._last_words = "it was not started"

    @property
    def engine(self) -> str:
        """Name used in logs and errors."""
        return self._process.engine

    @property
    def running(self) -> bool:
        """Whether the server is alive, as far as its actor said."""
        return self._end is not None and not self._end.done()

    async def start(self) -> None:
        """Start an actor and the server; see :class:`~agents.serving.EngineRunner`."""
        self._actor = self._cluster.actor(ServerActor, self._bundle, self._process)
        try:
            place = await asyncio.wait_for(result_of(self._actor.start.remote()), self._start_s)
            await self._cluster.shipping.bring(self._actor)
        except (RayError, TimeoutError) as error:
            await self.stop()
            raise ServerGone(
                f"{self.engine} cannot be started by Ray: {in_words(error)}"
            ) from error
        self._process.host, self._process.port = place
        self._end = asyncio.ensure_future(self._watch(self._actor))

    async def ended(self) -> None:
        """Wait until the server, its actor or its machine has ended."""
        if self._end is not None:
            self._last_words = await asyncio.shield(self._end)

    def last_words(self) -> str:
        """The server's last error, in one line."""
        return self._last_words

    def client(
        self, session: aiohttp.ClientSession, *, short_s: float, load_s: float
    ) -> EngineClient:
        """A client of the started server."""
        return self._process.client(session, short_s=short_s, load_s=load_s)

    async def stop(self) -> None:
        """Kill the server's processes and its actor."""
        actor, self._actor = self._actor, None
        if actor is None:
            return
        self._cluster.shipping.forget(actor)
        with contextlib.suppress(RayError, TimeoutError):
            await asyncio.wait_for(result_of(actor.stop.remote()), CLOSE_S)
        ray.kill(actor)
        if self._end is not None:
            await asyncio.wait({self._end}, timeout=CLOSE_S)

    async def _watch(self, actor: Any) -> str:
        try:
            words: str = await result_of(actor.ended.remote())
        except RayError as error:
            return in_words(error)
        return words
