"""Reports which backends work on this machine, and how to enable the others."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tools.sandbox.backends.launcher import LEVELS
from tools.sandbox.errors import SandboxUnavailable
from tools.sandbox.make import BACKENDS, UNSAFE, make_sandbox
from tools.sandbox.results import RunResult

_IN_A_CONTAINER = (
    "the container's engine forbids what bwrap needs: start the container with "
    "`--security-opt seccomp=unconfined --security-opt systempaths=unconfined`"
)
_ON_THE_MACHINE = (
    "user namespaces are forbidden: Ubuntu 24.04: an AppArmor profile for bwrap with `userns,`, or "
    "`sysctl kernel.apparmor_restrict_unprivileged_userns=0`; Debian of old: "
    "`sysctl kernel.unprivileged_userns_clone=1`"
)
# Messages of bubblewrap -> fixes; bubblewrap's own advice fits only some machines.
_CAUSES = (
    (
        r"max_\*_namespaces exceeded",
        "user namespaces are used up or switched off: `sysctl user.max_user_namespaces=10000` in "
        "the user namespace that lowered it",
    ),
    (r"[Nn]o permissions to creat|Creating new namespace failed|uid map|RTM_NEWADDR", None),
    (r"Can't mount proc", None),
)
_CONTAINER_SIGNS = ("/.dockerenv", "/run/.containerenv")


@dataclass(frozen=True)
class Finding:
    """The result of examining one backend on this machine."""

    backend: str
    isolation: str
    works: bool
    text: str
    """Speed and limits, or the reason why the backend does not work and the fix."""


async def examine(python: str | None) -> list[Finding]:
    """Run a program in each confining backend. Returns one finding for each, strongest first."""
    return [await _examine(name, python) for name in BACKENDS if name != UNSAFE]


async def _examine(name: str, python: str | None) -> Finding:
    sandbox = make_sandbox(name, python=python)
    try:
        async with sandbox:
            result: RunResult = await sandbox.run("print(1)")
    except SandboxUnavailable as error:
        refusal = "; ".join(error.refusals)
        fix = remedy(refusal)
        return Finding(name, sandbox.isolation, False, f"{refusal}. {fix}" if fix else refusal)
    lines = [
        f"a run takes {1000 * result.wall_s:.0f} ms, limits by {result.limits_enforced_by}",
        *(f"but {loss}" for loss in sandbox.lost),
    ]
    return Finding(name, result.isolation, True, "\n".join(lines))


def remedy(refusal: str) -> str:
    """The fix for a backend's refusal whose message names no fix, or "" if no fix is known."""
    for pattern, fix in _CAUSES:
        if re.search(pattern, refusal):
            return fix or (_IN_A_CONTAINER if _in_a_container() else _ON_THE_MACHINE)
    return ""


def _in_a_container() -> bool:
    return any(Path(sign).exists() for sign in _CONTAINER_SIGNS)


def report(findings: list[Finding]) -> str:
    """The findings as text: a paragraph for each backend, and the backend that ``auto`` chooses."""
    lines = []
    for one in findings:
        first, *more = one.text.splitlines()
        lines.append(
            f"{one.backend:13} {one.isolation:11} {'works; ' if one.works else 'no: '}{first}"
        )
        lines += [f"{'':25} {line}" for line in more]
    lines.append(f"{UNSAFE:13} {LEVELS[0]:11} always works, confines nothing: name it to use it")
    working = [one for one in findings if one.works]
    if working:
        taken = f"`auto` takes {working[0].backend} (isolation {working[0].isolation})"
        lacking = working[0].isolation != LEVELS[-1]
        lines.append(f"{taken}; `min_isolation={LEVELS[-1]!r}` would refuse" if lacking else taken)
    else:
        lines.append(
            "`auto` refuses: one of the above is needed. Least is asked by landlock: Linux 6.2 or "
            "newer with Landlock, best 6.12; it works in containers"
        )
    return "\n".join(lines)
