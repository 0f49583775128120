"""Ranks of the learner, and collectors, in Ray's actors."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from rl.cluster.child import CLOSE_S
from rl.cluster.joined_ranks import JoinedRank, group_of
from rl.cluster.ray_actors import in_words
from rl.cluster.settings import RayConfig
from rl.learner.ranks.joining import Joined, RankListener
from rl.learner.ranks.process import RankGroup
from rl.learner.seam import LearnerLost


class RayChild(JoinedRank):
    """A rank or a collector in an actor."""

    def __init__(self, joined: Joined, actor: Any, serving: Any, name: str = "") -> None:
        super().__init__(joined, name)
        self._actor = actor
        self._serving = serving

    def kill(self) -> None:
        """End the actor and the connection at once, without waiting for the end."""
        super().kill()
        # Without a connection, Ray's functions would start a new cluster.
        if ray.is_initialized():
            ray.kill(self._actor)

    def wait(self) -> None:
        """Wait for the end of the actor, and kill it if it takes long."""
        if ray.is_initialized() and not ray.wait([self._serving], timeout=CLOSE_S)[0]:
            self.kill()

    def epitaph(self) -> str:
        """How the actor ended, in one line."""
        line = super().epitaph()
        if not ray.is_initialized():
            return line
        try:
            ray.get(self._serving, timeout=CLOSE_S)
        except GetTimeoutError:
            return line
        except RayError as error:
            return f"{line}: {in_words(error)}"
        return line


def start_ranks(actors: Sequence[Any], settings: RayConfig) -> RankGroup:
    """Start a rank in each actor, and block until all are connected.

    Raises:
        LearnerLost: an actor does not start or connect in time.
    """
    ranks = list(map(RayChild, *_connected(actors, settings.start_s)))
    return group_of(ranks, num_threads=max(1, int(settings.rank_cpus)))


def start_collector(actor: Any, number: int, settings: RayConfig) -> RayChild:
    """Start a collector in an actor, and block until it is connected.

    Raises:
        LearnerLost: the actor does not start or connect in time.
    """
    ((joined,), (actor,), (serving,)) = _connected([actor], settings.start_s)
    child = RayChild(joined, actor, serving, f"collector {number}")
    child.number = number
    return child


def _connected(
    actors: Sequence[Any], start_s: float
) -> tuple[Sequence[Joined], Sequence[Any], Sequence[Any]]:
    """Let each actor serve, and block until all are connected.

    Returns:
        The connections, the actors, and the ends of their work.

    Raises:
        LearnerLost: an actor does not start or connect in time.
    """
    listener = RankListener(ray.util.get_node_ip_address(), 0, secrets.token_bytes(32))
    address, key = listener.address, listener.key
    serving = [actor.serve.remote(address, key, rank) for rank, actor in enumerate(actors)]
    try:
        joined = listener.accept(len(actors), start_s)
    except LearnerLost as error:
        failed = ray.wait(serving, num_returns=len(serving), timeout=0)[0]
        for actor in actors:
            ray.kill(actor)
        try:
            ray.get(failed)
        except RayError as cause:
            raise LearnerLost(f"{error}: {in_words(cause)}") from cause
        raise
    finally:
        listener.close()
    return joined, actors, serving
