"""How many cores a process may use: its affinity, its cgroups' quotas and OMP_NUM_THREADS."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rl.run.process import cores
from rl.run.process.cores import report_busy, usable_cores
from rl.settings.evaluate import EvaluateConfig
from rl.settings.parsing.command_line import parse


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """Sixteen cores, and control groups without a quota."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    membership = tmp_path / "membership"
    membership.write_text("0::/jobs/mine\n")
    root = tmp_path / "cgroup"
    (root / "jobs/mine").mkdir(parents=True)
    quotas = cores._quotas
    monkeypatch.setattr(cores, "_quotas", lambda *paths: quotas(root, membership))
    return root


def test_the_affinity_bounds(machine):
    assert usable_cores() == 16


@pytest.mark.parametrize(
    "quota, count",
    [("max 100000", 16), ("400000 100000", 4), ("250000 100000", 2), ("50000 100000", 1)],
)
@pytest.mark.parametrize("group", ["jobs/mine", "jobs", "."])
def test_the_quota_of_every_group_around_it_bounds(machine, group, quota, count):
    (machine / group / "cpu.max").write_text(f"{quota}\n")
    assert usable_cores() == count


@pytest.mark.parametrize(("asked", "count"), [("3", 3), ("2,1", 2), ("64", 16), ("", 16)])
def test_the_variable_bounds(machine, monkeypatch, asked, count):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    assert usable_cores() == count


def test_a_machine_without_cgroups_has_its_affinity(machine, monkeypatch, tmp_path):
    monkeypatch.setattr(cores, "_quotas", lambda *paths: [])
    assert usable_cores() == 16
    monkeypatch.undo()
    assert cores._quotas(tmp_path, tmp_path / "none") == []


@pytest.mark.parametrize(
    ("given", "spins"),
    [
        ({}, str(cores.SPIN_COUNT)),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, None),
    ],
)
def test_waiting_threads_sleep_soon_unless_the_user_says_otherwise(monkeypatch, given, spins):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    cores.bound_spinning()
    assert os.environ.get("GOMP_SPINCOUNT") == spins


def test_a_command_bounds_the_spinning_before_it_loads_torch():
    program = (
        "import os, sys, rl.train\n"
        "loaded = 'torch' in sys.modules\n"
        "rl.train.main(['env=toy-copy', 'dry_run=true'])\n"
        "print(loaded, os.environ['GOMP_SPINCOUNT'])"
    )
    environment = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT",)}
    environment.pop("OMP_WAIT_POLICY", None)
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        cwd=Path(__file__).resolve().parents[4],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == f"False {cores.SPIN_COUNT}"


def test_threads_are_all_usable_cores_unless_they_are_given(machine):
    def threads(*words):
        config = parse(EvaluateConfig, ["env=toy-copy", *words], command="rl.eval", presets={})
        return config.num_threads

    assert (threads(), threads("threads=2")) == (16, 2)


@pytest.mark.parametrize(
    ("threads", "load", "reported"), [(2, 4.1, True), (2, 3.9, False), (1, 20.0, False)]
)
def test_a_busy_machine_is_reported_if_several_threads_share_it(
    monkeypatch, threads, load, reported
):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    lines = []
    report_busy(threads, lines.append)
    assert lines == reported * [
        "the machine is busy (load average 4.1, 4 cores): 2 threads wait for each other and can "
        "take several times as long as one; try threads=1"
    ]
