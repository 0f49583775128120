"""Makes a sandbox with the named backend, or with the strongest backend that works here."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Callable, Mapping

from tools.sandbox.backends.bwrap import BwrapLauncher
from tools.sandbox.backends.docker.launcher import DockerLauncher
from tools.sandbox.backends.landlock import LocalLauncher
from tools.sandbox.backends.launcher import LEVELS, BackendOptions, Launcher
from tools.sandbox.interface import AnySandbox
from tools.sandbox.limits import Limits
from tools.sandbox.sandbox import MAX_WORKERS, Sandbox

# Strongest first.
BACKENDS: dict[str, Callable[[BackendOptions], Launcher]] = {
    "bwrap": lambda options: BwrapLauncher(options.python),
    "docker": lambda options: DockerLauncher(options.python, options.runtime),
    "landlock": lambda options: LocalLauncher(options.python, confined=True),
    "unsafe-local": lambda options: LocalLauncher(options.python, confined=False),
}
UNSAFE = "unsafe-local"


def make_sandbox(
    backend: str = "auto",
    limits: Limits | None = None,
    *,
    min_isolation: str | None = None,
    workers: int | None = None,
    max_sessions: int = 64,
    python: str | None = None,
    runtime: str | None = None,
    token: str | None = None,
) -> AnySandbox:
    """Make a sandbox for ``async with``. Entering it runs a canary program.

    Args:
        backend: "bwrap" or "docker" (isolation "namespaces"), "landlock" ("restricted"),
            "unsafe-local" ("none", for programs that you trust), or "auto" for the first of bwrap,
            docker and landlock that works here. Or "http://HOST:PORT" of another machine that runs
            ``python -m tools.sandbox serve``, or several, separated by commas, which share the
            work. The servers decide ``workers``, ``max_sessions``, ``python`` and ``runtime``.
            Entering the sandbox checks their isolation.
        limits: default limits of each run, or None for ``Limits()``.
        min_isolation: weakest isolation to accept. If None, "restricted" for "auto", and the
            backend's own level for a named backend.
        workers: maximum number of concurrent runs, or None for twice the number of cores.
        max_sessions: maximum number of open sessions, including copies and snapshots.
        python: the interpreter that runs programs, as a path or a name on the PATH, or None for the
            current one. Programs see no installed packages.
        runtime: container runtime, as the docker engine names it, for example "runsc", or None for
            the engine's default.
        token: token that the server requires. If None, the value of the environment variable
            TURNWISE_SANDBOX_TOKEN, if set.

    Raises:
        ValueError: the backend or level is unknown, the backend is weaker than ``min_isolation``,
            the interpreter does not exist, ``runtime`` is set for a backend other than docker, or
            an option is set that the server decides.
    """
    if backend.startswith(("http://", "https://")):
        for name, value in (("workers", workers), ("python", python), ("runtime", runtime)):
            if value is not None:
                raise ValueError(f"{name} ({value!r}) is for the server {backend} to decide")
        _check_level(min_isolation)
        # Imported here because it loads aiohttp, which local sandboxes do not need.
        from tools.sandbox.remote.client import RemoteSandbox
        from tools.sandbox.remote.pool import SandboxPool

        if len(urls := [url.strip() for url in backend.split(",")]) > 1:
            return SandboxPool(urls, limits, min_isolation=min_isolation, token=token)
        return RemoteSandbox(backend, limits, min_isolation=min_isolation, token=token)
    if token is not None:
        raise ValueError(f"token= is for a server's URL, not for backend={backend!r}")
    return local_sandbox(
        backend,
        limits,
        min_isolation=min_isolation,
        workers=workers,
        max_sessions=max_sessions,
        python=python,
        runtime=runtime,
    )


def linked_sandbox(links: Mapping[str, str], limits: Limits, *, max_sessions: int = 64) -> Sandbox:
    """A sandbox of backend bwrap whose read-only root also has symbolic links.

    Programs can thus write to a path such as ``/app``, which leads to their folder.

    Args:
        links: absolute paths of the links and their targets, which lie below ``/tmp``.
        limits: default limits of each run.
        max_sessions: maximum number of open sessions.
    """
    workers = min(2 * len(os.sched_getaffinity(0)), MAX_WORKERS)
    return Sandbox([BwrapLauncher(None, links)], limits, workers, max_sessions)


def _check_level(min_isolation: str | None) -> None:
    if min_isolation is not None and min_isolation not in LEVELS:
        raise ValueError(f"min_isolation ({min_isolation!r}) must be one of {', '.join(LEVELS)}")


def _program(python: str | None) -> str | None:
    """The interpreter's path, found on the PATH if ``python`` is a name."""
    if python is None:
        return None
    found = shutil.which(python)
    if found is None:
        where = "there is no program" if "/" in python else "the PATH has no program of that name"
        raise ValueError(f"python ({python!r}): {where}: name or path of a Python 3.11 or newer")
    return found


def local_sandbox(
    backend: str,
    limits: Limits | None,
    *,
    min_isolation: str | None = None,
    workers: int | None = None,
    max_sessions: int = 64,
    python: str | None = None,
    runtime: str | None = None,
) -> Sandbox:
    """A sandbox on this machine; see ``make_sandbox`` for the arguments."""
    if backend != "auto" and backend not in BACKENDS:
        raise ValueError(
            f"backend ({backend!r}) must be one of auto, {', '.join(BACKENDS)}, or a server's URL"
        )
    _check_level(min_isolation)
    if runtime is not None and backend != "docker":
        raise ValueError(f"runtime ({runtime!r}) needs backend='docker', not {backend!r}")
    if workers is None:
        workers = min(2 * len(os.sched_getaffinity(0)), MAX_WORKERS)
    options = BackendOptions(_program(python), runtime)
    names = [n for n in BACKENDS if n != UNSAFE] if backend == "auto" else [backend]
    launchers = [BACKENDS[name](options) for name in names]
    if min_isolation is not None:
        floor = LEVELS.index(min_isolation)
        launchers = [one for one in launchers if LEVELS.index(one.isolation) >= floor]
        if not launchers:
            raise ValueError(
                f"backend ({backend!r}) has an isolation below min_isolation "
                f"({min_isolation!r}): name a stronger backend or lower the level"
            )
    if backend == UNSAFE:
        warnings.warn(
            "unsafe-local runs programs unconfined, with all rights of this user",
            UserWarning,
            stacklevel=3,
        )
    return Sandbox(launchers, limits or Limits(), workers, max_sessions)
