"""One container: how it is hardened, how it is named, and which ones nobody owns any more."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.sandbox import launcher
from tools.sandbox.docker import handover, profile

OWNER_LABEL = "turnwise.sandbox.owner"
"""On every container; its value tells who made it."""
_REMOVAL_S = 3
"""Seconds that the engine may take to remove a container."""
_OUT_OF_MEMORY_SCORE = 500
"""The kernel, out of memory, takes these processes before the trainer's."""


@dataclass(frozen=True)
class Spec:
    """What is asked of the engine."""

    command: tuple[str, ...]
    user_id: int
    memory_mb: int
    """Of everything in the container, kernel memory included."""
    tasks: int
    """Processes and threads of everything in it."""
    runtime: str | None
    """As the engine names it; None: its default."""


def create(client: Any, image: str, spec: Spec, owner: str, folder: Path | None = None) -> str:
    """The id of a new container, not started: no network, nothing writable, no capability.

    Args:
        client: a ``docker.APIClient``.
        image: its id.
        spec: what differs from container to container.
        owner: a name as ``owner`` gives it.
        folder: of this machine, shown at ``handover.FOLDER``.
    """
    import docker.types

    armour = {"name=apparmor": "apparmor=unconfined"}  # its default forbids every mount
    options = client.info()["SecurityOptions"]
    config = client.create_host_config(
        auto_remove=True,
        network_mode="none",
        ipc_mode="private",
        read_only=True,
        cap_drop=["ALL"],
        security_opt=[
            "no-new-privileges",
            f"seccomp={profile.seccomp()}",
            *(option for name, option in armour.items() if name in options),
        ],
        mem_limit=spec.memory_mb << 20,
        memswap_limit=spec.memory_mb << 20,
        pids_limit=spec.tasks,
        oom_score_adj=_OUT_OF_MEMORY_SCORE,
        shm_size=1 << 20,
        tmpfs={"/dev/pts": "ro,size=4k,nr_inodes=1"},  # no terminals
        # 0 would not keep a crash from starting the machine's helper.
        ulimits=[docker.types.Ulimit(name="core", soft=1, hard=1)],
        log_config={"Type": "none"},
        runtime=spec.runtime,
        mounts=[
            docker.types.Mount(handover.FOLDER, str(shown), type="bind", read_only=True)
            for shown in [folder]
            if shown is not None
        ],
        # What the engine would copy from this machine's.
        dns=["127.0.0.1"],
        dns_search=["."],
    )
    # The kernel lets a run mount its own /proc only where nothing of this one is covered. Programs
    # never see this one.
    config["MaskedPaths"] = config["ReadonlyPaths"] = []
    made = client.create_container(
        image,
        list(spec.command),
        hostname="sandbox",
        user=f"{spec.user_id}:{spec.user_id}",
        environment=dict(launcher.ENVIRONMENT),
        working_dir="/",
        stdin_open=True,  # and closed when the one client that attaches to it goes
        labels={OWNER_LABEL: owner},
        host_config=config,
    )
    return str(made["Id"])


def owner(pid: int) -> str:
    """A name for process ``pid`` of this machine that no other process ever has."""
    return json.dumps({"boot": _boot(), "pids": _pid_namespace(), "pid": pid, "since": _since(pid)})


def is_gone(name: str) -> bool:
    """Whether the owner of that name has ended; False where that cannot be known from here."""
    try:
        who = json.loads(name)
        boot, pids, pid, since = who["boot"], who["pids"], int(who["pid"]), who["since"]
    except (ValueError, KeyError, TypeError):
        return False
    if boot != _boot():
        return True
    return bool(pids == _pid_namespace() and _since(pid) != since)


def sweep(client: Any) -> int:
    """Remove what ended trainers left: containers made and not started, or kept by the engine.

    Returns:
        How many were removed.
    """
    left = client.containers(all=True, filters={"label": OWNER_LABEL})
    return sum(remove(client, one["Id"]) for one in left if is_gone(one["Labels"][OWNER_LABEL]))


def remove(client: Any, made: str) -> bool:
    """Kill and remove a container; False when it is on its way out, or its runtime hangs."""
    import docker.errors
    import requests

    patience, client.timeout = client.timeout, _REMOVAL_S
    try:
        client.remove_container(made, force=True)
    except (docker.errors.APIError, requests.RequestException):
        return False
    finally:
        client.timeout = patience
    return True


def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def _since(pid: int) -> str:
    """When process ``pid`` started, in ticks since the boot; empty when there is none."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return status.rpartition(")")[2].split()[19]
