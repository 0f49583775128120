"""Creates hardened containers, labels them with their owners, and removes those of dead owners."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.sandbox.backends import launcher
from tools.sandbox.backends.docker import control_socket, profile

OWNER_LABEL = "turnwise.sandbox.owner"
"""Label of every container; its value identifies the creating process."""
_REMOVAL_S = 3
"""Maximum seconds that the engine takes to remove a container."""
_OUT_OF_MEMORY_SCORE = 500
"""Out-of-memory score of a container's processes. The kernel kills them before the trainer."""


@dataclass(frozen=True)
class Spec:
    """Options of a container."""

    command: tuple[str, ...]
    user_id: int
    memory_mb: int
    """Memory limit in MiB for everything in the container, including kernel memory."""
    tasks: int
    """Maximum number of processes and threads in the container."""
    runtime: str | None
    """Name of the container runtime, or None for the engine's default."""


def create(client: Any, image: str, spec: Spec, owner: str, folder: Path | None = None) -> str:
    """Create a container without network, writable files or capabilities; return its id.

    Args:
        client: a ``docker.APIClient``.
        image: id of the image.
        spec: options of the container.
        owner: identifier of the owner, made by ``owner``.
        folder: folder to mount at ``control_socket.FOLDER``, or None to mount nothing.
    """
    import docker.types

    # AppArmor's default profile forbids every mount.
    security = {"name=apparmor": "apparmor=unconfined"}
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
            *(option for name, option in security.items() if name in options),
        ],
        mem_limit=spec.memory_mb << 20,
        memswap_limit=spec.memory_mb << 20,
        pids_limit=spec.tasks,
        oom_score_adj=_OUT_OF_MEMORY_SCORE,
        shm_size=1 << 20,
        tmpfs={"/dev/pts": "ro,size=4k,nr_inodes=1"},  # no terminals
        # With 0, a crash would still start the machine's core-dump helper.
        ulimits=[docker.types.Ulimit(name="core", soft=1, hard=1)],
        log_config={"Type": "none"},
        runtime=spec.runtime,
        mounts=[
            docker.types.Mount(control_socket.FOLDER, str(shown), type="bind", read_only=True)
            for shown in [folder]
            if shown is not None
        ],
        # Otherwise the engine copies this machine's settings.
        dns=["127.0.0.1"],
        dns_search=["."],
    )
    # The kernel lets a run mount its own /proc only if no part of the container's /proc is masked.
    # Programs never see the container's /proc.
    config["MaskedPaths"] = config["ReadonlyPaths"] = []
    made = client.create_container(
        image,
        list(spec.command),
        hostname="sandbox",
        user=f"{spec.user_id}:{spec.user_id}",
        environment=dict(launcher.ENVIRONMENT),
        working_dir="/",
        stdin_open=True,  # the engine closes it when the one attached client is gone
        labels={OWNER_LABEL: owner},
        host_config=config,
    )
    return str(made["Id"])


def owner(pid: int) -> str:
    """Identifier of process ``pid``. It is unique, even among the processes of earlier boots."""
    return json.dumps({"boot": _boot(), "pids": _pid_namespace(), "pid": pid, "since": _since(pid)})


def is_gone(name: str) -> bool:
    """Whether the owner with that identifier has ended. False if this process cannot know."""
    try:
        who = json.loads(name)
        boot, pids, pid, since = who["boot"], who["pids"], int(who["pid"]), who["since"]
    except (ValueError, KeyError, TypeError):
        return False
    if boot != _boot():
        return True
    return bool(pids == _pid_namespace() and _since(pid) != since)


def sweep(client: Any) -> int:
    """Remove containers of dead owners: those that never started, and those that the engine kept.

    Returns:
        Number of removed containers.
    """
    left = client.containers(all=True, filters={"label": OWNER_LABEL})
    return sum(remove(client, one["Id"]) for one in left if is_gone(one["Labels"][OWNER_LABEL]))


def remove(client: Any, made: str) -> bool:
    """Kill and remove a container. Returns False if it is already ending or its runtime hangs."""
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
    """Start time of process ``pid``, in ticks since the boot, or "" if there is no such process."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    return status.rpartition(")")[2].split()[19]
