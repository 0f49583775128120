"""The docker backend: the container's end, the engine's end, and leftovers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import docker
import docker.errors
import pytest
from processes import called

from tools.sandbox import CallTest, Limits, SandboxFailure, SandboxUnavailable, make_sandbox
from tools.sandbox.backends import bwrap, interpreter
from tools.sandbox.backends.docker import container, control_socket, engine, image


async def until(condition, seconds: float = 15.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.02)


async def test_runs_of_a_killed_container_are_repeated(engine_client, own_containers):
    async with make_sandbox("docker", Limits(wall_s=20.0)) as sandbox:
        (before,) = own_containers()
        run = asyncio.create_task(sandbox.run("import time; time.sleep(1); print('again')"))
        source = "import time\ndef f(): time.sleep(1)\n"
        grade = asyncio.create_task(sandbox.grade(source, [CallTest((), None)], "f"))
        await asyncio.sleep(0.5)
        engine_client.kill(before["Id"])
        assert (await run).stdout == "again\n"
        assert (await grade).passed
        (after,) = own_containers()
        assert after["Id"] != before["Id"]
    assert own_containers() == []


@pytest.fixture
def no_shared_folder(monkeypatch):
    """An engine that cannot show the container a folder of this machine."""
    monkeypatch.setattr(control_socket, "SOCKET_PATH", "/nowhere")


async def test_jobs_use_the_tunnel_if_no_descriptor_can_be_passed(engine_client, no_shared_folder):
    text = "0123456789" * 300_000
    async with make_sandbox("docker", Limits(wall_s=20.0, output_kb=4096)) as sandbox:
        echo = "import sys\nsys.stdout.write(sys.stdin.read())"
        results = await asyncio.gather(*(sandbox.run(echo, stdin=text) for _ in range(3)))
        assert [result.stdout == text for result in results] == [True] * 3
        verdict = await sandbox.grade(
            "def f(x):\n    return x * 2", [CallTest((n,), 2 * n) for n in range(20)], "f"
        )
        assert verdict.num_passed == 20
        sleeper = "import ctypes, time; ctypes.CDLL(None).prctl(15, b'tw-carried'); time.sleep(60)"
        run = asyncio.create_task(sandbox.run(sleeper, limits=Limits(wall_s=60)))
        await until(lambda: len(called("tw-carried")) == 1)
        run.cancel()
        await until(lambda: not called("tw-carried"))
        assert (await sandbox.run("print(1)")).stdout == "1\n"


async def test_killed_containers_are_replaced_with_the_tunnel_too(
    engine_client, own_containers, no_shared_folder
):
    async with make_sandbox("docker", Limits(wall_s=20.0)) as sandbox:
        run = asyncio.create_task(sandbox.run("import time; time.sleep(1); print('again')"))
        await asyncio.sleep(0.5)
        engine_client.kill(own_containers()[0]["Id"])
        assert (await run).stdout == "again\n"
    assert own_containers() == []


HOST_PROGRAM = """
import asyncio
from tools.sandbox import Limits, make_sandbox
from tools.sandbox.backends.docker import control_socket
control_socket.SOCKET_PATH = "/nowhere"
async def main():
    async with make_sandbox("docker", Limits(wall_s=60)) as sandbox:
        await sandbox.run(
            "import ctypes, time; ctypes.CDLL(None).prctl(15, b'tw-left'); time.sleep(60)"
        )
asyncio.run(main())
"""


async def test_a_container_ends_with_its_host_with_the_tunnel_too(engine_client):
    host = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path}\n{HOST_PROGRAM}"]
    )
    try:
        await until(lambda: len(called("tw-left")) == 1)
    finally:
        host.kill()
        host.wait()
    await until(lambda: not called("tw-left"), seconds=1.0)


@pytest.mark.parametrize("folder", ["short", "long" * 40])
def test_a_control_socket_is_given_to_the_right_process_only(tmp_path, monkeypatch, folder):
    tmp_path = tmp_path / folder
    tmp_path.mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    server = control_socket.ControlSocketServer("the token")
    monkeypatch.chdir(server.folder)
    mine, theirs = socket.socketpair()
    answers = []
    for token in (b"a guess", b"", b"the token"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect("host")
            client.send(token)
            server.pass_descriptor(theirs.fileno())
            _, fds, _, _ = socket.recv_fds(client, 16, 1)
            answers.append(len(fds))
            for fd in fds:
                os.close(fd)
    assert answers == [0, 0, 1]
    assert server.folder.parent == tmp_path
    server.close()
    assert list(tmp_path.iterdir()) == []
    mine.close()
    theirs.close()


class Proxy:
    """A socket that forwards all data to the engine until it is cut."""

    def __init__(self, path: Path, engine: str) -> None:
        self.path = path
        self.engine = engine
        self.connections: list[socket.socket] = []
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(path))
        self.listener.listen()
        self.acceptor = threading.Thread(target=self.accept)
        self.acceptor.start()

    def accept(self) -> None:
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.engine)
            self.connections += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self.pump, args=(source, sink), daemon=True).start()

    @staticmethod
    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        """Cut all connections, as if the engine were gone."""
        self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.acceptor.join()
        self.path.unlink(missing_ok=True)
        for sock in self.connections:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        time.sleep(0.1)
        for sock in self.connections:
            sock.close()


@pytest.fixture
def proxy(engine_client, tmp_path, monkeypatch):
    made = Proxy(tmp_path / "engine", engine.url().removeprefix("unix://"))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{made.path}")
    yield made
    if made.path.exists():
        made.cut()


async def test_an_engine_that_is_gone_is_a_failure_and_no_verdict(proxy, own_containers):
    async with make_sandbox("docker", Limits(wall_s=20.0)) as sandbox:
        run = asyncio.create_task(sandbox.run("import time; time.sleep(15)"))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(proxy.cut)
        with pytest.raises(SandboxFailure, match="no engine at"):
            await run
        await until(lambda: own_containers() == [])  # the end of the connection closes its input


def test_only_containers_of_dead_trainers_are_removed(engine_client):
    name = image.ensure(engine_client, interpreter.find(None))
    spec = container.Spec(("/bin/true",), 20_000, 64, 8, None)
    trainer = subprocess.Popen(["sleep", "60"])
    try:
        theirs = container.create(engine_client, name, spec, container.owner(trainer.pid))
        mine = container.create(engine_client, name, spec, container.owner(os.getpid()))
        try:
            container.sweep(engine_client)
            assert engine_client.inspect_container(theirs)["State"]["Status"] == "created"
            trainer.kill()
            trainer.wait()
            assert container.sweep(engine_client) >= 1
            with pytest.raises(docker.errors.NotFound):
                engine_client.inspect_container(theirs)
            assert engine_client.inspect_container(mine)["State"]["Status"] == "created"
        finally:
            assert container.remove(engine_client, mine)
    finally:
        trainer.kill()
        trainer.wait()


def test_an_owner_counts_as_gone_only_if_that_is_known():
    alive = json.loads(container.owner(os.getpid()))
    assert not container.is_gone(json.dumps(alive))
    assert container.is_gone(json.dumps({**alive, "since": "1"}))  # another process has its number
    assert container.is_gone(json.dumps({**alive, "boot": "another"}))
    assert not container.is_gone(json.dumps({**alive, "pids": 1, "since": "1"}))
    assert not container.is_gone("anything")


async def test_a_runtime_that_the_engine_lacks_is_refused(engine_client):
    with pytest.raises(SandboxUnavailable, match=r"no runtime 'kata', only .*runc"):
        await make_sandbox("docker", runtime="kata").start()
    with pytest.raises(ValueError, match="needs backend='docker', not 'bwrap'"):
        make_sandbox("bwrap", runtime="runsc")


async def test_a_kernel_without_whole_user_namespaces_is_refused(engine_client):
    if "runsc" not in engine_client.info()["Runtimes"]:
        pytest.skip("the engine has no gVisor")
    with pytest.raises(SandboxUnavailable, match=r"user namespaces are incomplete|does not start"):
        await make_sandbox("docker", runtime="runsc").start()


async def test_a_missing_engine_is_named_at_once(monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "_PROBE_S", 60)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")
    started = time.monotonic()
    with pytest.raises(SandboxUnavailable, match=r"no engine at .*none.*apt install docker.io"):
        await make_sandbox("docker").start()
    assert time.monotonic() - started < 30
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    with pytest.raises(SandboxUnavailable, match="must be unix://"):
        await make_sandbox("docker").start()


async def test_an_engine_that_systemd_would_start_is_left_alone(monkeypatch, tmp_path):
    monkeypatch.setattr(engine, "_SYSTEMD", tmp_path)
    monkeypatch.setattr(engine, "_PID_FILE", tmp_path / "none")
    path = tmp_path / "engine"
    monkeypatch.setattr(engine, "_DEFAULT", f"unix://{path}")
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(SandboxUnavailable, match="does not run: start it"):
            await make_sandbox("docker").start()
        listener.setblocking(False)
        with pytest.raises(BlockingIOError):  # no connection was tried
            listener.accept()


async def test_auto_waits_two_seconds_for_a_silent_engine(monkeypatch, tmp_path, python_for):
    def refuse():
        raise SandboxUnavailable("bwrap is not installed: install it")

    monkeypatch.setattr(bwrap, "find_bwrap", refuse)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "engine"))
        listener.listen()
        monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine")
        started = time.monotonic()
        with pytest.raises(SandboxUnavailable, match="does not answer"):
            await make_sandbox(min_isolation="namespaces", python=python_for("landlock")).start()
        assert 2 <= time.monotonic() - started < 30
