"""Finds the docker engine of this machine and connects to it, but never starts it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from tools.sandbox.errors import SandboxUnavailable

_DEFAULT = "unix:///var/run/docker.sock"
_PROBE_S = 2
"""Maximum seconds to wait for the engine's first answer. Short, because the choice of a backend
waits for this answer."""
_CALL_S = 20
"""Maximum seconds to wait for each later answer."""
_START_IT = "start it (`systemctl start docker`) or set DOCKER_HOST"
_SYSTEMD = Path("/run/systemd/system")
_PID_FILE = Path("/run/docker.pid")


def check_present() -> None:
    """Check that an engine runs, without connecting: a connection could start the engine.

    Raises:
        SandboxUnavailable: no engine runs, or this user is not allowed to use it.
    """
    address = url()
    if not address.startswith("unix://"):
        raise SandboxUnavailable(
            f"docker: DOCKER_HOST ({address}) must be unix:// and a path: an engine of this machine"
        )
    path = Path(address.removeprefix("unix://"))
    if not path.is_socket():
        raise SandboxUnavailable(
            f"docker: no engine at {path}: install one (`apt install docker.io`), {_START_IT}"
        )
    if address == _DEFAULT and _SYSTEMD.is_dir() and not _PID_FILE.exists():
        raise SandboxUnavailable(f"docker: the engine does not run: {_START_IT}")
    if not os.access(path, os.R_OK | os.W_OK):
        raise SandboxUnavailable(
            f"docker: {path} is closed to this user: join the group docker "
            "(which gives its members root), or use a rootless engine"
        )


def connect() -> Any:
    """Connect to the engine. Returns a ``docker.APIClient``, after the engine has answered.

    Raises:
        SandboxUnavailable: the engine does not answer within 2 s, or cannot limit memory.
    """
    import docker
    import docker.errors
    import requests

    check_present()
    try:
        client = docker.APIClient(base_url=url(), version="auto", timeout=_PROBE_S)
    except (docker.errors.DockerException, requests.RequestException) as error:
        raise SandboxUnavailable(
            f"docker: the engine at {url()} does not answer ({error}): {_START_IT}"
        ) from None
    client.timeout = _CALL_S
    info = client.info()
    if not (info["MemoryLimit"] and info["PidsLimit"]):
        raise SandboxUnavailable(
            "docker: the engine cannot limit memory and processes of a container: give it these "
            "cgroups (a rootless engine needs cgroup version 2, delegated)"
        )
    return client


def check_runtime(client: Any, runtime: str) -> None:
    """Check that the engine has a runtime of that name.

    Raises:
        SandboxUnavailable: the engine lacks the runtime. The message lists its runtimes.
    """
    known = sorted(client.info()["Runtimes"])
    if runtime not in known:
        raise SandboxUnavailable(
            f"docker: the engine has no runtime {runtime!r}, only {', '.join(known)}: install it "
            f"and name it in /etc/docker/daemon.json (gVisor: `runsc install`)"
        )


def url() -> str:
    """Address of the engine: ``DOCKER_HOST``, or the default socket."""
    return os.environ.get("DOCKER_HOST") or _DEFAULT
