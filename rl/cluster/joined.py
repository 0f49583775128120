"""``cluster=join``: another launcher starts the learner's ranks, and they join the run."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rl.cluster.cluster import Cluster
from rl.cluster.joined_ranks import JoinedRank, group_of
from rl.cluster.settings import JoinConfig
from rl.errors import UsageError
from rl.learner.ranks.joining import RankListener
from rl.learner.ranks.process import RankGroup


class JoinedRanks(Cluster):
    """Ranks that connect to the run. Servers are this machine's."""

    def __init__(self, listener: RankListener, settings: JoinConfig) -> None:
        self._listener = listener
        self._settings = settings

    def start_ranks(self, size: int) -> RankGroup:
        """Wait for ``size`` ranks; see :meth:`Cluster.start_ranks`."""
        joined = self._listener.accept(size, self._settings.start_s)
        return group_of(list(map(JoinedRank, joined)), self._settings.rank_threads)


@contextmanager
def open_joined(settings: JoinConfig) -> Iterator[JoinedRanks]:
    """Listen for ranks until the context ends; see ``rl.cluster.opening.open_cluster``.

    Raises:
        UsageError: the run cannot listen at the address, or its key cannot be read or written.
    """
    path = Path(settings.key_file).expanduser()
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_bytes(secrets.token_bytes(32))
        listener = RankListener(*settings.address, path.read_bytes())
    except OSError as error:
        raise UsageError(
            f"cluster=join cannot wait for ranks at {settings.listen} with cluster.key_file="
            f"{settings.key_file}: {error.strerror or error}"
        ) from error
    try:
        yield JoinedRanks(listener, settings)
    finally:
        listener.close()
