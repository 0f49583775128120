"""Connections from ranks on other machines to the run's process.

A rank connects to the run by TCP, and both prove to each other that they know a secret of the run
(``multiprocessing.connection``'s challenge, which does not send it). What they send afterwards is
neither encrypted nor signed: use a network that only your machines are on.
"""

from __future__ import annotations

import secrets
import socket
import threading
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from queue import Empty, SimpleQueue
from typing import Any

from rl.learner.seam import LearnerLost

_POLL_S = 0.2


class RankListener:
    """Waits for the connections of a run's ranks.

    Args:
        host: address of this machine under which the ranks reach it.
    """

    def __init__(self, host: str) -> None:
        self._socket = socket.create_server((host, 0))
        self._socket.settimeout(_POLL_S)
        self.address: tuple[str, int] = (host, self._socket.getsockname()[1])
        """Where the ranks connect."""
        self.key = secrets.token_bytes(32)
        """The secret of the run."""

    def accept(self, size: int, within_s: float) -> list[Connection[Any, Any]]:
        """The connections of ``size`` ranks, by rank.

        Raises:
            LearnerLost: a rank did not connect in time.
        """
        arrived: SimpleQueue[tuple[int, Connection[Any, Any]]] = SimpleQueue()
        found: dict[int, Connection[Any, Any]] = {}
        end = time.monotonic() + within_s
        while len(found) < size:
            if time.monotonic() > end:
                for connection in found.values():
                    connection.close()
                missing = ", ".join(str(rank) for rank in range(size) if rank not in found)
                raise LearnerLost(f"rank {missing} did not connect within {within_s:g} s")
            try:
                client, _ = self._socket.accept()
                # In a thread of its own: a stranger could connect and say nothing.
                args = (Connection(client.detach()), arrived)
                threading.Thread(target=self._greet, args=args, daemon=True).start()
            except TimeoutError:
                pass
            try:
                while True:
                    rank, connection = arrived.get_nowait()
                    if 0 <= rank < size:
                        found[rank] = connection
            except Empty:
                continue
        return [found[rank] for rank in range(size)]

    def close(self) -> None:
        """Accept no more connections."""
        self._socket.close()

    def _greet(
        self,
        connection: Connection[Any, Any],
        arrived: SimpleQueue[tuple[int, Connection[Any, Any]]],
    ) -> None:
        try:
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
            arrived.put((int.from_bytes(connection.recv_bytes(8), "big"), connection))
        except (AuthenticationError, EOFError, OSError):
            connection.close()


def join(address: tuple[str, int], key: bytes, rank: int) -> Connection[Any, Any]:
    """Connect a rank to its run.

    Raises:
        OSError: the run does not listen there.
        AuthenticationError: one of both does not know the secret.
    """
    connection: Connection[Any, Any] = Connection(socket.create_connection(address).detach())
    answer_challenge(connection, key)
    deliver_challenge(connection, key)
    connection.send_bytes(rank.to_bytes(8, "big"))
    return connection
