"""The four package names are common ones: whose they are is asked before any is imported."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from envs.base.name_clash import check_tools
from rl.run.process.identity import PackageCollision, check_packages

HOME = Path(__file__).resolve().parents[4]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("tools", "rl.train"),
        ("tools", "rl.pipeline"),
        ("tools", "rl.replay"),
        ("tools", "rl.judge"),
        ("tools", "envs"),
        ("tools", "envs.replay"),
        ("envs", "rl.sft"),
        ("agents", "rl.eval"),
    ],
)
def test_another_projects_package_is_refused_by_its_path(tmp_path, name, command):
    foreign = tmp_path / name / "__init__.py"
    foreign.parent.mkdir()
    foreign.write_text("")
    # As where turnwise is installed as a wheel: an editable install's finder (-S: not there)
    # would take the parts of a package from two places.
    libraries = [path for path in sys.path if path.endswith("site-packages")]
    path = os.pathsep.join([str(tmp_path), str(HOME), *libraries])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(
        [sys.executable, "-S", "-m", command, "--help"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"error: package {name!r} resolves to {foreign}, not to turnwise's under {HOME}: "
        f"start with python -P -m, from another folder, or without the other on PYTHONPATH\n"
    )


@pytest.mark.parametrize(
    ("check", "error"), [(check_packages, PackageCollision), (check_tools, ImportError)]
)
def test_a_folder_without_init_is_refused_by_its_path(tmp_path, monkeypatch, check, error):
    # With an editable install a folder of scripts called tools is found before turnwise's.
    spec = ModuleSpec("tools", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path / "tools")]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(error) as refused:
        check()
    assert f"'tools' resolves to {tmp_path / 'tools'}, not to turnwise's" in str(refused.value)


@pytest.mark.parametrize("check", [check_packages, check_tools])
def test_turnwise_itself_is_accepted(check):
    check()


def test_a_folder_envs_before_turnwises_is_one_line_for_python_m_envs(tmp_path):
    # As an editable install's finder leaves it: the user's package, with turnwise's files in it.
    program = (
        "import runpy, sys, types\n"
        "from importlib.machinery import ModuleSpec\n"
        "theirs = types.ModuleType('envs')\n"
        f"theirs.__path__ = [{str(HOME / 'envs')!r}]\n"
        f"theirs.__spec__ = ModuleSpec('envs', None, origin={str(tmp_path / '__init__.py')!r})\n"
        "sys.modules['envs'] = theirs\n"
        f"runpy.run_path({str(HOME / 'envs' / '__main__.py')!r}, run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=HOME,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == (
        f"error: package 'envs' resolves to {tmp_path / '__init__.py'}, not to turnwise's under "
        f"{HOME}: start with python -P -m, from another folder, or without the other on "
        f"PYTHONPATH\n"
    )
