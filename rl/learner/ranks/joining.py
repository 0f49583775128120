"""Connections from ranks that were started elsewhere to the run's process.

A rank connects to the run by TCP, and both prove to each other that they know a secret of the run
(``multiprocessing.connection``'s challenge, which does not send it). What they send afterwards is
neither encrypted nor signed: use a network that only your machines are on.

``python -m rl.learner.ranks.joining HOST:PORT KEYFILE`` is one rank, which joins the run that waits
at HOST:PORT with ``cluster=join``. A launcher such as torchrun or Slurm's srun starts it once for
each rank. The rank's number and its GPU are those of the launcher's variables.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import sys
import threading
import time
from dataclasses import dataclass
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from agents.serving.orphans import shared_memory_here
from rl.cluster.child import end_connection
from rl.learner.seam import LearnerLost

RANK_VARIABLES = ("RANK", "SLURM_PROCID")
"""Environment variables with a rank's number: torchrun's, and Slurm's."""
DEVICE_VARIABLES = ("LOCAL_RANK", "SLURM_LOCALID")
"""Environment variables with the number of a rank's GPU on its machine."""
_POLL_S = 0.2
_SIOCGIFADDR = 0x8915


@dataclass(frozen=True)
class Joined:
    """A rank that connected."""

    connection: Connection[Any, Any]
    rank: int
    address: str
    """The address of its machine, as the run sees it."""
    port: int
    """A port at which nothing listens there."""
    pid: int
    device: int
    """The number of its GPU, among those that its process sees."""
    shares_files: bool
    """Whether its process and the run's see the same folder in memory."""

    def end_connection(self) -> None:
        """End the connection for both sides and every thread, which ends the rank."""
        end_connection(self.connection)


class RankListener:
    """Waits for the connections of a run's ranks.

    Args:
        host: address of this machine under which the ranks reach it.
        port: the port; 0 for a free one.
        key: the secret of the run.

    Raises:
        OSError: another program listens there, or the address is not this machine's.
    """

    def __init__(self, host: str, port: int, key: bytes) -> None:
        self._socket = socket.create_server((host, port))
        self._socket.settimeout(_POLL_S)
        self.address: tuple[str, int] = (host, self._socket.getsockname()[1])
        """Where the ranks connect."""
        self.key = key

    def accept(self, size: int, within_s: float) -> list[Joined]:
        """``size`` ranks that connected, by rank.

        Raises:
            LearnerLost: a rank did not connect in time.
        """
        arrived: SimpleQueue[Joined] = SimpleQueue()
        found: dict[int, Joined] = {}
        end = time.monotonic() + within_s
        while len(found) < size:
            if time.monotonic() > end:
                for joined in found.values():
                    joined.connection.close()
                missing = ", ".join(str(rank) for rank in range(size) if rank not in found)
                raise LearnerLost(f"rank {missing} did not connect within {within_s:g} s")
            with contextlib.suppress(TimeoutError):
                client, (address, _) = self._socket.accept()
                # In a thread of its own: a stranger could connect and say nothing.
                args = (Connection(client.detach()), address, arrived)
                threading.Thread(target=self._greet, args=args, daemon=True).start()
            with contextlib.suppress(Empty):
                while True:
                    joined = arrived.get_nowait()
                    if 0 <= joined.rank < size:
                        found[joined.rank] = joined
        return [found[rank] for rank in range(size)]

    def close(self) -> None:
        """Accept no more connections."""
        self._socket.close()

    def _greet(
        self, connection: Connection[Any, Any], address: str, arrived: SimpleQueue[Joined]
    ) -> None:
        try:
            deliver_challenge(connection, self.key)
            answer_challenge(connection, self.key)
            facts = json.loads(connection.recv_bytes(1024))
            shares_files = facts.pop("memory") == shared_memory_here()
            arrived.put(Joined(connection, address=address, shares_files=shares_files, **facts))
        except (AuthenticationError, EOFError, OSError, KeyError, ValueError, TypeError):
            connection.close()


def join(address: tuple[str, int], key: bytes, rank: int, device: int = 0) -> Connection[Any, Any]:
    """Connect a rank to its run.

    Gloo is bound to the interface that reaches the run, because the machine's name may stand for
    another of its addresses.

    Args:
        address: where the run listens.
        key: the secret of the run.
        rank: the rank's number.
        device: the number of its GPU, among those that this process sees.

    Raises:
        OSError: the run does not listen there.
        AuthenticationError: one of both does not know the secret.
    """
    connected = socket.create_connection(address)
    own: str = connected.getsockname()[0]
    connection: Connection[Any, Any] = Connection(connected.detach())
    answer_challenge(connection, key)
    deliver_challenge(connection, key)
    with socket.socket() as free:
        free.bind((own, 0))
        facts = {"rank": rank, "port": free.getsockname()[1], "pid": os.getpid()}
    facts |= {"device": device, "memory": shared_memory_here()}
    connection.send_bytes(json.dumps(facts).encode())
    if (interface := _interface_of(own)) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    return connection


def _interface_of(address: str) -> str | None:
    """The network interface with this IPv4 address, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(sock.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None


def main(words: list[str]) -> None:
    """Be one rank of the run that waits at an address; ends with the run."""
    host, _, port = words[0].rpartition(":") if len(words) == 2 else ("", "", "")
    if not host or not port.isdecimal():
        sys.exit("usage: python -m rl.learner.ranks.joining HOST:PORT KEYFILE")
    number, device = (
        next((os.environ[name] for name in names if name in os.environ), None)
        for names in (RANK_VARIABLES, DEVICE_VARIABLES)
    )
    if number is None:
        sys.exit(f"none of {', '.join(RANK_VARIABLES)} is set: start ranks by torchrun or srun")
    # torchrun's ranks would look for its own store at the rendezvous, and the run names another.
    os.environ.pop("TORCHELASTIC_USE_AGENT_STORE", None)
    from rl.learner.ranks.rank import serve  # loads torch

    key = Path(words[1]).read_bytes()
    try:
        serve(join((host, int(port)), key, int(number), int(device or 0)))
    except (OSError, EOFError, AuthenticationError) as error:
        sys.exit(f"rank {number} cannot join the run at {words[0]}: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
