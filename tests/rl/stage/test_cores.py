"""How many cores a process may use: its affinity, its cgroups' quotas and OMP_NUM_THREADS."""

from __future__ import annotations

import os

import pytest

from rl.settings import cores
from rl.settings.cores import usable_cores


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
