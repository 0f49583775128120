"""``deterministic=true`` on a GPU, which these tests only pretend to have."""

import os
from types import SimpleNamespace

import pytest
import torch

from agents.local.sampling import _running_sums
from rl.errors import UsageError
from rl.runtime.deterministic import WORKSPACE, deterministic_kernels


def flags():
    cudnn = torch.backends.cudnn
    fill = torch.utils.deterministic.fill_uninitialized_memory
    return torch.are_deterministic_algorithms_enabled(), cudnn.deterministic, cudnn.benchmark, fill


@pytest.fixture
def gpu(monkeypatch):
    # Set and then deleted, so that a value of the code under test is removed too.
    monkeypatch.setenv(WORKSPACE, "")
    monkeypatch.delenv(WORKSPACE)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)


def config(device="auto", deterministic=True):
    return SimpleNamespace(device=device, deterministic=deterministic)


def test_a_gpu_gets_deterministic_kernels_during_the_run(gpu, monkeypatch):
    before = flags()
    assert not before[0]
    with deterministic_kernels(config()):
        assert flags() == (True, True, False, False)
        assert os.environ[WORKSPACE] == ":4096:8"
    assert flags() == before
    # A second run in this process finds the variable, which cuBLAS has read.
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with deterministic_kernels(config("cuda:1")):
        assert flags()[0]


@pytest.mark.parametrize("settings", [config("cpu"), config(deterministic=False)])
def test_other_runs_are_as_before(gpu, settings):
    before = flags()
    with deterministic_kernels(settings):
        assert flags() == before
        assert WORKSPACE not in os.environ


@pytest.mark.parametrize(("value", "started"), [(None, True), (":0:0", False), (":0:0", True)])
def test_sums_that_do_not_repeat_are_refused(gpu, monkeypatch, value, started):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: started)
    if value is not None:
        monkeypatch.setenv(WORKSPACE, value)
    before = flags()
    message = r"deterministic needs CUBLAS_WORKSPACE_CONFIG=:4096:8 .* (unset after|':0:0')"
    with pytest.raises(UsageError, match=message), deterministic_kernels(config()):
        pass
    assert flags() == before


def test_the_users_own_workspace_is_kept(gpu, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setenv(WORKSPACE, ":16:8")
    with deterministic_kernels(config()):
        assert os.environ[WORKSPACE] == ":16:8"


class OnGPU:
    """Probabilities that say they are on a GPU."""

    is_cuda, device = True, "cpu"

    def __init__(self, probs):
        self.probs, self.sums = probs, []

    def cpu(self):
        self.sums.append("cpu")
        return self.probs

    def cumsum(self, dim):
        self.sums.append("gpu")
        return self.probs.cumsum(dim)


@pytest.mark.parametrize(("deterministic", "where"), [(True, "cpu"), (False, "gpu")])
def test_the_cpu_adds_probabilities_where_a_gpus_sums_do_not_repeat(gpu, deterministic, where):
    probs = OnGPU(torch.tensor([[0.25, 0.5, 0.25]]))
    with deterministic_kernels(config(deterministic=deterministic)):
        assert _running_sums(probs).tolist() == [[0.25, 0.75, 1.0]]
    assert probs.sums == [where]
