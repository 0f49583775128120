"""Fixtures: one sandbox for each backend and module."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import backends
import docker.errors
import pytest
import pytest_asyncio

from tools.sandbox import Limits, Sandbox, SandboxUnavailable, make_sandbox
from tools.sandbox.backends import interpreter
from tools.sandbox.backends.docker import container, engine


def readable_python() -> str | None:
    """Interpreter that programs can use without mounts; None: the one that runs the tests."""
    if interpreter.find(None).reachable:
        return None
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(path).exists() and os.access(path, os.X_OK):
            return path
    backends.missing("landlock", "root's interpreter is closed to other users, without another")


@pytest.fixture(scope="session")
def python_for():
    """Backend name -> ``python=`` for ``make_sandbox``."""
    return lambda backend: readable_python() if backend == "landlock" else None


@pytest.fixture(autouse=True)
def alone_with_landlock(request):
    """For a user other than root, the kernel counts all processes of ``landlock`` together: a fork
    bomb in one test process would make forks fail in another."""
    if os.getuid() == 0 or "landlock" not in request.node.name:
        yield
        return
    with Path(tempfile.gettempdir(), f"turnwise-landlock-tests-{os.getuid()}").open("w") as turn:
        deadline = time.monotonic() + 600
        while True:
            try:
                fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                assert time.monotonic() < deadline, "another test holds landlock for too long"
                time.sleep(0.05)
        yield


@pytest.fixture(scope="session")
def need(python_for):
    """Function that skips or fails the test unless the named backend works here."""
    return lambda backend: _skip_without(backend, python_for(backend))


def _skip_without(backend: str, python: str | None) -> None:
    reason = _missing(backend, python)
    if reason:
        backends.missing(backend, reason)


@functools.cache
def _missing(backend: str, python: str | None) -> str:
    """Why a backend does not work on this machine; "" if it works."""

    async def tried() -> str:
        try:
            async with make_sandbox(backend, python=python):
                return ""
        except SandboxUnavailable as error:
            if "does not confine" in str(error):
                raise
            return str(error)

    with ThreadPoolExecutor(1) as apart:  # this thread may run an event loop
        return apart.submit(asyncio.run, tried()).result()


async def started(backend: str, python: str | None) -> Sandbox:
    """A running sandbox; without the backend, the test is skipped or fails."""
    made = make_sandbox(backend, Limits(wall_s=5.0, memory_mb=256), python=python)
    try:
        await made.start()
    except SandboxUnavailable as error:
        if "does not confine" in str(error):
            raise
        backends.missing(backend, str(error))
    return made


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["bwrap", "docker", "landlock"])
async def either(request, python_for):
    """A sandbox of each backend that works here."""
    made = await started(request.param, python_for(request.param))
    yield made
    await made.close()


@pytest.fixture(scope="module")
def engine_client():
    """A client of the docker engine; without an engine, the test is skipped or fails."""
    try:
        client = engine.connect()
    except SandboxUnavailable as error:
        backends.missing("docker", str(error))
    yield client
    client.close()


@pytest.fixture(scope="module")
def own_containers(engine_client):
    """Function that lists this process's containers, as the engine describes them."""
    label = f"{container.OWNER_LABEL}={container.owner(os.getpid())}"

    def listed() -> list[dict]:
        described = []
        for one in engine_client.containers(all=True, filters={"label": label}):
            # A container may end between the two calls.
            with contextlib.suppress(docker.errors.NotFound):
                described.append(engine_client.inspect_container(one["Id"]))
        return described

    return listed
