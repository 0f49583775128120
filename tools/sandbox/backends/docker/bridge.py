"""The bridge: a separate process on the host's machine that owns one container.

The bridge makes the container. It passes the control socket to the container's zygote or, if that
is impossible, forwards the jobs through a tunnel. When the host closes the control socket or dies,
the bridge closes its connection, which ends the container. When the container ends, so does the
bridge.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tools.sandbox.backends.docker import container, engine, image
from tools.sandbox.backends.docker.control_socket import ControlSocketServer
from tools.sandbox.backends.interpreter import Interpreter
from tools.sandbox.errors import SandboxUnavailable
from tools.sandbox.inside import kernel, relay
from tools.sandbox.inside.tunnel import Tunnel

_START_S = 15.0
"""Maximum seconds from a container's creation to its start."""
_REMOVAL_S = 5.0
"""Seconds within which a container must end after its input is closed. Otherwise it is killed."""
_FRAME = struct.Struct("!BxxxI")  # the engine's framing: stream, length
_STANDARD_OUTPUT = 1
_BAD_REQUEST = 400

# The host's search path, so that the bridge imports the same modules.
START = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from tools.sandbox.backends.docker import bridge
bridge.main(sys.argv[2])
"""


@dataclass(frozen=True)
class Task:
    """Arguments of the bridge."""

    parent_pid: int
    control_fd: int
    bundle_fd: int
    """Descriptor of a file with the source that runs in the container, as made by
    ``bundle.document``."""
    token: str
    """Secret that the container's process must send to get the control socket."""
    python: Interpreter
    spec: container.Spec


def encode(task: Task) -> str:
    """``task`` as text, for the bridge's command line."""
    return json.dumps(asdict(task))


def _decode(text: str) -> Task:
    fields = json.loads(text)
    fields["python"] = Interpreter(**fields["python"])
    fields["spec"] = container.Spec(**fields["spec"])
    return Task(**fields)


def main(text: str) -> None:
    """Serve one container from its start to its end.

    Args:
        text: an encoded ``Task``.
    """
    task = _decode(text)
    kernel.die_with_parent()
    if os.getppid() != task.parent_pid:
        sys.exit(1)
    try:
        _serve(task)
    except SandboxUnavailable as error:
        sys.exit(str(error))


def _serve(task: Task) -> None:
    import docker.errors
    import requests

    client = engine.connect()
    try:
        if task.spec.runtime is not None:
            engine.check_runtime(client, task.spec.runtime)
        container.sweep(client)
        made, server = _create(client, task)
        decoder = _Decoder()
        try:
            stream = _start(client, made, task)
            control, received = _pass_control(stream, server, decoder, task.control_fd)
        except BaseException:
            container.remove(client, made)
            raise
        finally:
            server.close()
        source, sink = stream.fileno(), os.dup(stream.fileno())
        Tunnel(control, source, sink, first=0, decode=decoder.feed, received=received).serve()
        control.close()
        with suppress(OSError):  # the engine closed it first
            stream.shutdown(socket.SHUT_RDWR)
        _wait_until_removed(client, made)
    except docker.errors.APIError as error:
        raise SandboxUnavailable(f"docker: {error.explanation or error}") from None
    except requests.RequestException as error:
        raise SandboxUnavailable(f"docker: the engine stopped answering: {error}") from None


def _create(client: Any, task: Task) -> tuple[str, ControlSocketServer]:
    import docker.errors

    packed = image.ensure(client, task.python)
    owner = container.owner(task.parent_pid)
    server = ControlSocketServer(task.token)
    try:
        try:
            return container.create(client, packed, task.spec, owner, server.folder), server
        except docker.errors.APIError as error:
            if error.status_code != _BAD_REQUEST:
                raise
            # The engine does not see this machine's folders: create the container without one.
            return container.create(client, packed, task.spec, owner), server
    except BaseException:
        server.close()
        raise


def _pass_control(
    stream: socket.socket, server: ControlSocketServer, decoder: _Decoder, control_fd: int
) -> tuple[socket.socket, bytes]:
    """Pass the control socket to the container. If that is impossible, the tunnel carries the jobs.

    Returns:
        The control socket for the tunnel, and the container's output so far. If the host's control
            socket was passed, the tunnel gets a socket on which no data arrives.
    """
    deadline = time.monotonic() + _START_S
    poller = select.poll()
    for fd in (stream.fileno(), server.fileno()):
        poller.register(fd, select.POLLIN)
    heard = b""
    while not heard:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise SandboxUnavailable(f"docker: the container sent nothing for {_START_S:.0f} s")
        events = dict(poller.poll(1000 * remaining))
        if server.fileno() in events:
            server.pass_descriptor(control_fd)
        if stream.fileno() in events:
            data = stream.recv(1 << 16)
            if not data:
                raise SandboxUnavailable("docker: the container ended at once")
            heard = decoder.feed(data)
    if heard[:1] == relay.TUNNEL:
        return socket.socket(fileno=control_fd), heard[1:]
    os.close(control_fd)
    control, silent = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    silent.detach()  # open as long as this process
    return control, heard[1:]


def _start(client: Any, made: str, task: Task) -> socket.socket:
    """Start the container, send its bundle, and return a connection to its standard streams.

    Raises:
        SandboxUnavailable: the container did not start in time. Some runtimes hang forever.
    """
    import requests

    params = {"stdin": 1, "stdout": 1, "stderr": 1, "stream": 1}
    attached = client.attach_socket(made, params=params)
    stream = socket.socket(fileno=os.dup(attached.fileno()))
    patience, client.timeout = client.timeout, _START_S
    try:
        client.start(made)
    except requests.Timeout:
        raise SandboxUnavailable(
            f"docker: the runtime ({task.spec.runtime or 'default'}) did not start a container "
            f"within {_START_S:.0f} s"
        ) from None
    finally:
        client.timeout = patience
    document = Path(f"/proc/self/fd/{task.bundle_fd}").read_bytes()
    stream.settimeout(_REMOVAL_S)
    stream.sendall(struct.pack("!I", len(document)) + document)
    return stream


def _wait_until_removed(client: Any, made: str) -> None:
    import docker.errors

    deadline = time.monotonic() + _REMOVAL_S
    try:
        while time.monotonic() < deadline:
            client.inspect_container(made)
            time.sleep(0.02)
        container.remove(client, made)
    except docker.errors.NotFound:
        return


class _Decoder:
    """Removes the engine's framing from a container's output.

    The container's standard error is copied to this process's standard error.
    """

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> bytes:
        """The standard output in the frames that are complete after ``data`` arrived."""
        self._received += data
        output = bytearray()
        at = 0
        while len(self._received) - at >= _FRAME.size:
            stream, length = _FRAME.unpack_from(self._received, at)
            end = at + _FRAME.size + length
            if end > len(self._received):
                break
            content = self._received[at + _FRAME.size : end]
            if stream == _STANDARD_OUTPUT:
                output += content
            else:
                with suppress(BlockingIOError):  # the pipe is full: drop the rest
                    os.write(2, content)
            at = end
        del self._received[:at]
        return bytes(output)
