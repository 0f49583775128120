"""The landlock backend with older versions of Landlock, which newer kernels offer too."""

from __future__ import annotations

import logging
import os
import signal

import pytest

from tools.sandbox import SandboxUnavailable, Status, make_sandbox
from tools.sandbox.backends import landlock
from tools.sandbox.inside import kernel

SIGNALS = """
import fcntl, os, signal
tried = {
    "kill": lambda: os.kill(os.getpid(), 0),
    "killpg": lambda: os.killpg(os.getpgid(0), 0),
    "raise": lambda: signal.raise_signal(signal.SIGUSR1),
    "pidfd": lambda: signal.pidfd_send_signal(os.pidfd_open(os.getpid()), 0),
    "owner": lambda: fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid()),
    "number": lambda: fcntl.fcntl(0, fcntl.F_SETSIG, signal.SIGKILL),
}
for name, act in tried.items():
    try:
        act()
        print(name, "done")
    except PermissionError:
        print(name, "denied")
"""
STEPS = """
import os, subprocess, sys
with open("own", "w") as file:
    file.write("mine")
os.truncate("own", 2)
print(open("own").read())
for path in ("/etc/passwd", sys.executable):
    try:
        os.truncate(path, 0)
        print("truncated")
    except OSError as error:
        print(type(error).__name__)
print(subprocess.run(["/bin/echo", "child"], capture_output=True, text=True).stdout.strip())
"""


@pytest.fixture(params=[3, 4, 5])
def old_kernel(request, monkeypatch):
    if kernel.landlock_abi() < request.param:
        pytest.skip(f"Landlock {kernel.landlock_abi()} only")
    monkeypatch.setattr(kernel, "landlock_abi", lambda: request.param)
    return request.param


async def test_files_are_confined_as_by_a_new_kernel(old_kernel, python_for):
    async with make_sandbox("landlock", python=python_for("landlock")) as sandbox:
        result = await sandbox.run(STEPS)
    assert result.status is Status.OK, result
    assert result.stdout.split() == ["mi", "PermissionError", "PermissionError", "child"]


async def test_signals_are_denied_if_they_would_reach_outside(
    old_kernel, monkeypatch, caplog, python_for
):
    monkeypatch.setattr(landlock, "_own_uids", lambda _: (0, 0))  # as for another user than root
    with caplog.at_level(logging.WARNING):
        async with make_sandbox("landlock", python=python_for("landlock")) as sandbox:
            result = await sandbox.run(SIGNALS)
            looped = await sandbox.run("import os, threading\nos.fork() or os._exit(0)\nos.wait()")
            (loss,) = sandbox.lost
    assert result.status is Status.OK, result
    assert {line.split()[1] for line in result.stdout.splitlines()} == {"denied"}
    assert len(result.stdout.splitlines()) == 6
    assert looped.status is Status.OK
    assert f"no signals, not even to themselves: Landlock {old_kernel}" in loss
    assert loss in caplog.text


async def test_under_root_each_run_has_a_user_and_no_guarantee_is_lost(old_kernel, python_for):
    if os.geteuid() != 0:
        pytest.skip("only root can")
    async with make_sandbox("landlock", python=python_for("landlock")) as sandbox:
        result = await sandbox.run("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
        assert (result.status, result.signal) == (Status.KILLED, signal.SIGKILL)
        assert sandbox.lost == ()


@pytest.mark.parametrize("version", [0, 2])
async def test_a_version_that_does_not_govern_truncation_is_refused(
    version, monkeypatch, python_for
):
    monkeypatch.setattr(kernel, "landlock_abi", lambda: version)
    with pytest.raises(SandboxUnavailable, match=f"offers version {version}, 3 is needed"):
        async with make_sandbox("landlock", python=python_for("landlock")):
            pass
