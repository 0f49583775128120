"""The benchmark of one GPU: its results, its isolation of parts, and a small pass on the CPU."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest
import torch

from agents.serving.policy import ServerPolicy
from benchmarks.gpu import parts, stalls, vllm
from benchmarks.gpu.__main__ import main
from benchmarks.gpu.correctness import Variant, make_updater
from benchmarks.gpu.figures import Figure, Report, Setup, number, table
from benchmarks.gpu.job import job_config, warm_start
from benchmarks.gpu.learner import FULL, LORA, flops_per_token
from benchmarks.gpu.parts import PARTS, Results, measure, run_here
from benchmarks.gpu.workloads import make_group, make_model, model_folder
from rl.learner.settings import OptimizerConfig

HOME = Path(__file__).resolve().parents[2]
GPU = Setup("cuda", small=False, work=Path("nowhere"))
ABOUT = {"device", "driver", "cuda", "memory_gib", "cores", "packages", "python", "commit"}
FIELDS = {"part", "name", "value", "unit", "at_least", "at_most", "peer", "note", "failed"}


def check_schema(results: dict) -> None:
    """Fail unless this is the file that docs/gpu.md describes."""
    assert results.keys() == ABOUT | {"small", "parts"}
    assert {"torch", "transformers", "vllm"} <= results["packages"].keys()
    for name, part in results["parts"].items():
        assert name in PARTS
        assert part.keys() == {"status", "seconds", "error", "warnings", "figures"}
        assert part["status"] in ("done", "failed", "not run")
        for figure in part["figures"]:
            assert figure.keys() == FIELDS | {"status"} and figure["part"] == name
            assert figure["status"] in ("met", "missed", "measured", "skipped", "failed")
            for key in ("value", "at_least", "at_most"):
                assert figure[key] is None or isinstance(figure[key], int | float)
            # A missing figure has a reason.
            assert figure["value"] is not None or figure["note"]


def test_all_parts_run_small_on_a_cpu(tmp_path):
    out = tmp_path / "gpu.json"
    words = ["--small", "--device", "cpu", "--out", str(out), "--budget", "900"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.gpu", *words],
        cwd=HOME,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1000,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(out.read_text())
    check_schema(results)
    assert results["small"] and list(results["parts"]) == list(PARTS)
    assert {part["status"] for part in results["parts"].values()} == {"done"}
    for name in ("correctness", "deterministic"):
        figures = results["parts"][name]["figures"]
        assert {f["status"] for f in figures} <= {"met", "measured", "skipped"}
        assert sum(f["status"] == "met" for f in figures) >= 4
    watched = [f["value"] for f in results["parts"]["stalls"]["figures"] if f["value"] is not None]
    assert len(watched) == 4 and min(watched) >= 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_a_machine_without_a_gpu_gets_one_line(tmp_path, monkeypatch, capsys):
    out = tmp_path / "gpu.json"
    monkeypatch.setattr(sys, "argv", ["benchmarks.gpu", "--out", str(out)])
    with pytest.raises(SystemExit, match="2"):
        main()
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.endswith("--device (cuda:0) needs a GPU that torch sees: give --small --device cpu")
    assert not out.exists()


@pytest.mark.skipif(
    not (HOME / "benchmarks" / "results" / "gpu.json").is_file(), reason="no GPU has run it"
)
def test_committed_results_have_the_schema():
    results = json.loads((HOME / "benchmarks" / "results" / "gpu.json").read_text())
    check_schema(results)
    assert not results["small"] and results["device"] != "cpu"


def test_a_figure_is_judged_by_its_goal():
    cases = {
        "met": Figure("p", "n", 1.0, at_least=0.9, at_most=1.1),
        "missed": Figure("p", "n", 1.2, at_least=0.9, at_most=1.1),
        "measured": Figure("p", "n", 1.2),
        "skipped": Figure("p", "n", at_most=1.1),
        "failed": Figure("p", "n", 1.0, at_most=1.1, failed=True),
    }
    assert {figure.status for figure in cases.values()} == set(cases)
    assert all(figure.status == status for status, figure in cases.items())
    assert Figure("p", "n", float("nan"), at_most=1.0).status == "missed"
    assert cases["met"].goal == ">= 0.9 <= 1.1"
    assert [line.split("  ")[0] for line in table([cases["met"]]).splitlines()] == ["part", "p"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12, "12"),
        (9213.4, "9,213"),
        (0.111, "0.111"),
        (14.04, "14.0"),
        (3.2e-7, "3.20e-07"),
    ],
)
def test_numbers_have_three_digits(value, text):
    assert number(value) == text


def test_operations_are_those_of_published_figures():
    # prime-rl: 11.9k tokens/s are 11.1% of 989 TFLOP/s, 16k tokens in a row.
    assert flops_per_token(FULL, GPU) == pytest.approx(0.111 * 989e12 / 11_900, rel=0.01)
    # 4 operations for each of 4.02e9 weights, 6 x 36 layers x 4096 x 16384 for attention.
    assert flops_per_token(LORA, GPU) == pytest.approx(4 * 4.02e9 + 6 * 36 * 4096 * 16384, rel=0.01)


def test_a_part_that_fails_keeps_its_figures_and_the_others(tmp_path, monkeypatch):
    class Broken:
        @staticmethod
        def run(setup, report):
            report("first", 1.0)
            with report.guard("second"):
                raise RuntimeError("no kernel\nmore")
            raise MemoryError("full")

    class Whole:
        @staticmethod
        def run(setup, report):
            report("third", 3.0)

    modules = {"benchmarks.gpu.head": Broken, "benchmarks.gpu.stalls": Whole}
    monkeypatch.setattr(parts, "import_module", modules.__getitem__)
    setup, file = Setup("cpu", True, tmp_path), tmp_path / "lines.jsonl"
    run_here(["head", "stalls"], setup, file)
    results = Results(setup, tmp_path / "gpu.json")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for name in ("head", "stalls", "device"):
        results.add(name, lines, "ended after 1 s")
    head = results.parts["head"]
    assert [(f.name, f.status) for f in head.figures] == [
        ("first", "measured"),
        ("second", "failed"),
    ]
    assert head.figures[1].note == "RuntimeError: no kernel"
    assert (head.status, head.error) == ("failed", "MemoryError: full")
    assert results.parts["stalls"].status == "done"
    assert results.parts["device"].error == "ended after 1 s"
    assert results.summary() == "0 met, 0 missed, 2 measured, 0 skipped, 3 failed"
    assert not results.is_good(with_goals=False)


def test_a_part_without_time_is_reported_and_the_file_is_written(tmp_path):
    setup = Setup("cpu", True, tmp_path)
    results = Results(setup, tmp_path / "gpu.json")
    measure(["head"], setup, results, budget_s=0.2)
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert list(written["parts"]) == ["device", "head"]
    assert written["parts"]["head"]["status"] == "not run"
    assert written["parts"]["head"]["error"].startswith("ended after 0 s")


def test_a_reported_figure_survives_the_process(tmp_path):
    report = Report("head", tmp_path / "lines.jsonl")
    report("rows", 3, "tokens/s", at_least=2.0)
    report.skip("more", "why")
    first, second = map(json.loads, (tmp_path / "lines.jsonl").read_text().splitlines())
    assert Figure(**first["figure"]).status == "met"
    assert Figure(**second["figure"]).row()[-1] == "why"


class PretendGPU(Setup):
    """A CPU whose parts of the benchmark take the branches of a GPU."""

    on_gpu = True


@pytest.fixture
def pretend_gpu(tmp_path, monkeypatch):
    """Functions of torch.cuda with their own signatures and plausible results."""
    facts = SimpleNamespace(name="NVIDIA H100 80GB HBM3", total_memory=80 * 2**30)
    results = {
        "synchronize": None,
        "empty_cache": None,
        "reset_peak_memory_stats": None,
        "memory_allocated": 3 * 2**20,
        "max_memory_allocated": 4 * 2**20,
        "max_memory_reserved": 5 * 2**20,
        "memory_reserved": 5 * 2**20,
        "mem_get_info": (79 * 2**30, 80 * 2**30),
        "get_device_properties": facts,
        "get_device_name": facts.name,
        "set_per_process_memory_fraction": None,
        "set_sync_debug_mode": None,
    }
    for name, result in results.items():
        called = create_autospec(getattr(torch.cuda, name), return_value=result)
        monkeypatch.setattr(torch.cuda, name, called)
    return PretendGPU("cpu", small=True, work=tmp_path)


@pytest.mark.parametrize("name", ["device", "stalls", "full", "packing", "head", "offload"])
def test_branches_of_a_gpu_run(name, pretend_gpu, tmp_path):
    lines = tmp_path / "lines.jsonl"
    run_here([name], pretend_gpu, lines)
    results = Results(pretend_gpu, tmp_path / "gpu.json")
    results.add(name, [json.loads(line) for line in lines.read_text().splitlines()], "")
    part = results.parts[name]
    assert (part.status, part.error) == ("done", "")
    # A GPU leaves no figure out.
    assert {f.status for f in part.figures} <= {"met", "missed", "measured"}
    found = {f.name: f.value for f in part.figures}
    if name == "full":
        assert found["0.6B full, 16k: peak of an update"] == 4 / 1024
        assert found["0.6B full, 16k: reserved at the peak"] == 5 / 1024
        assert found["0.6B full, 16k: CUDA's context"] == 1 - 5 / 1024
    if name == "device":
        assert results.as_json()["device"] == "NVIDIA H100 80GB HBM3"


def test_figures_of_vllm_come_from_the_runs_lines(tmp_path):
    step = {"time/wall": 2.0, "num_tokens": 300.0, "time/policy/generate": 1.5}
    sync = {"sync/load_s": 0.08, "sync/tensors_compared": 310.0}
    lines = [{**step, **sync, "sync/load_s": 0.2}, {**step, **sync}, {**step, **sync}, step]
    report = Report("vllm", tmp_path / "lines.jsonl")
    vllm._syncs("0.6B:", lines, report)
    written = [json.loads(line)["figure"] for line in report.path.read_text().splitlines()]
    assert [(f["name"], f["value"]) for f in written] == [
        ("0.6B: weight update", 0.08),
        ("0.6B: tensors proved equal by digest", 310.0),
        ("0.6B: sampled", 200.0),
    ]
    for policy in vllm.POLICIES:
        changes = {**vllm.CHANGES, "policy": policy, "env.sandbox": "auto"}
        config = job_config(GPU, Path("model"), changes, "run")
        assert config.policy.name == policy["name"] and config.steps == 5
        assert config.policy.settings.transfer == "ipc"


def test_a_second_part_takes_the_models_of_the_first(tmp_path):
    saved = tmp_path / "warm-start" / "checkpoints" / "last"
    saved.mkdir(parents=True)
    setup, report = Setup("cpu", True, tmp_path), Report("job", tmp_path / "lines.jsonl")
    assert warm_start(setup, {}, report) == saved and not report.path.exists()
    folder = model_folder("0.6B", setup)
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert model_folder("4B", setup) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == made


def test_a_run_with_vllm_is_measured(tmp_path, monkeypatch):
    async def rest(policy):
        policy.append("rested")

    monkeypatch.setattr(ServerPolicy, "sleep", rest)
    rested = []

    def fit(config):
        asyncio.run(ServerPolicy.sleep(rested))
        line = {"time/wall": 1.0, "num_tokens": 30.0, "time/policy/generate": 0.5}
        sync = {"sync/load_s": 0.09, "sync/tensors_compared": 310.0}
        return SimpleNamespace(folder=tmp_path, history=[{**line, **sync}] * 2)

    monkeypatch.setattr(vllm.rl, "fit", fit)
    report = Report("vllm", tmp_path / "lines.jsonl")
    vllm._measure(vllm.POLICIES[0], None, report)
    written = [json.loads(line)["figure"] for line in report.path.read_text().splitlines()]
    found = {f["name"].removeprefix("0.6B, vllm-engine: "): Figure(**f) for f in written}
    assert rested == ["rested"] and found["sleep"].value >= 0 and found["wake"].value is None
    assert found["weight update"].status == found["tensors proved equal by digest"].status == "met"
    assert ServerPolicy.sleep is rest


def test_synchronisations_are_counted_within_micro_batches_only(pretend_gpu, monkeypatch):
    """Clipping, the step and the metrics wait for the device; they do not count."""
    modes = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", modes.append)

    def note(*_):
        if modes and modes[-1] == "warn":
            warnings.warn("called a synchronizing CUDA operation", stacklevel=2)

    model = make_model("tiny", pretend_gpu, torch.float32)
    updater = make_updater(model, Variant(max_tokens=64), OptimizerConfig())
    groups = [make_group(8, [20, 30, 10], 512, seed) for seed in (0, 1)]
    score, clip = updater.model.score, updater.optimizer.clip_gradients
    monkeypatch.setattr(updater.model, "score", lambda micro: (note(), score(micro))[1])
    monkeypatch.setattr(updater.optimizer, "clip_gradients", lambda: (note(), clip())[1])
    watched, places = stalls._counted(updater, groups, pretend_gpu)
    # The first micro-batch is scored before its backward pass begins the watch.
    assert watched >= 3 and places.total() == watched - 1
    assert modes[-1] == "default"
    assert list(places) == [next(iter(places))] and next(iter(places)).startswith("tests/")
