"""Ranks of the learner in Ray's actors."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from rl.cluster.ray_actors import in_words, seen_here
from rl.cluster.settings import RayConfig
from rl.learner.ranks.joining import RankListener
from rl.learner.ranks.process import CLOSE_S, RankGroup
from rl.learner.seam import LearnerLost


class RayRank:
    """A rank in an actor; see ``rl.learner.ranks.process.RankProcess``."""

    def __init__(self, number: int, actor: Any, place: tuple[str, int, int], serving: Any) -> None:
        self.number = number
        self.address, _, self.pid = place
        self.connection: Connection[Any, Any]
        self._actor = actor
        self._serving = serving

    def kill(self) -> None:
        """End the actor at once, without waiting for its end."""
        # Without a connection, Ray's functions would start a new cluster.
        if ray.is_initialized():
            ray.kill(self._actor)

    def wait(self) -> None:
        """Wait for the end of the actor, and kill it if it takes long."""
        if ray.is_initialized() and not ray.wait([self._serving], timeout=CLOSE_S)[0]:
            self.kill()

    def epitaph(self) -> str:
        """How the actor ended, in one line."""
        line = f"rank {self.number} of the learner, on {self.address}, ended"
        if not ray.is_initialized():
            return line
        try:
            ray.get(self._serving, timeout=CLOSE_S)
        except GetTimeoutError:
            return f"{line} its connection"
        except RayError as error:
            return f"{line}: {in_words(error)}"
        return line


def start_ranks(actors: Sequence[Any], settings: RayConfig) -> RankGroup:
    """Start a rank in each actor, and block until all are connected.

    Raises:
        LearnerLost: an actor does not start or connect in time.
    """
    within_s = settings.start_s
    listener = RankListener(ray.util.get_node_ip_address())
    try:
        places = ray.get([actor.place.remote() for actor in actors], timeout=within_s)
        with seen_here() as path:
            shares = ray.get(actors[0].sees.remote(path), timeout=within_s)
        ranks = [
            RayRank(n, actor, place, actor.serve.remote(listener.address, listener.key, n))
            for n, (actor, place) in enumerate(zip(actors, places, strict=True))
        ]
        for rank, connection in zip(ranks, listener.accept(len(ranks), within_s), strict=True):
            rank.connection = connection
    except (RayError, LearnerLost) as error:
        for actor in actors:
            ray.kill(actor)
        raise LearnerLost(f"the learner's ranks do not start on Ray: {in_words(error)}") from error
    finally:
        listener.close()
    host, port, _ = places[0]
    return RankGroup(
        ranks=ranks,
        rendezvous=f"tcp://{host}:{port}",
        devices=[0] * len(ranks),  # Ray shows each actor its own GPU alone.
        shares_files=shares,
        num_threads=max(1, int(settings.rank_cpus)),
    )
