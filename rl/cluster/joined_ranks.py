"""Ranks of the learner that connected to the run, started by Ray or by another launcher."""

from __future__ import annotations

from collections.abc import Sequence

from rl.learner.ranks.joining import Joined
from rl.learner.ranks.process import RankGroup


class JoinedRank:
    """A rank or a collector that connected; see ``rl.cluster.child.ChildProcess``.

    Args:
        joined: the connection.
        name: its name in messages, with its number.
    """

    def __init__(self, joined: Joined, name: str = "") -> None:
        self.joined = joined
        self._name = name or f"rank {joined.rank} of the learner"
        self.number, self.pid = joined.rank, joined.pid
        self.connection = joined.connection

    def kill(self) -> None:
        """End the connection at once, which ends the rank."""
        # Where the rank's machine is cut off, nothing else ends the connection here.
        self.joined.end_connection()

    def wait(self) -> None:
        """Return at once: the end of the connection is all that the run sees."""

    def epitaph(self) -> str:
        """How the rank ended, in one line."""
        return f"{self._name}, on {self.joined.address}, ended"


def group_of(ranks: Sequence[JoinedRank], num_threads: int) -> RankGroup:
    """The group of ranks that connected, with a free port of rank 0's machine as rendezvous."""
    first = ranks[0].joined
    return RankGroup(
        ranks=ranks,
        rendezvous=f"tcp://{first.address}:{first.port}",
        devices=[rank.joined.device for rank in ranks],
        shares_files=first.shares_files,
        num_threads=num_threads,
    )
