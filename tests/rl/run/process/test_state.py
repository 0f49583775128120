"""The status of a run, from its last status file and the existence of its process."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict

import pytest

from rl.errors import UsageError
from rl.run.process import state as states
from rl.run.process.state import RunState, born_at, read_state, write_state
from rl.status import main as status

MESSAGE = states._FILE_KEYS["message"]
"""The key of a message in status.json, which earlier versions wrote too."""


def moment(**values):
    known = {
        "state": "running",
        "step": 3,
        "steps": 9,
        "pid": os.getpid(),
        "born": born_at(os.getpid()),
        "host": platform.node(),
        "began": time.time() - 100,
        "written": time.time(),
        "progress_s": 2.0,
        "progress": "an episode",
        "loop_s": 0.0,
    }
    return RunState(**known | values)


def test_a_status_file_of_an_earlier_version_is_read(tmp_path):
    keys = "state step steps pid born host began written progress_s progress loop_s waits num_waits"
    write_state(tmp_path, moment(component_status={"vLLM 0": "restarting"}, message="why"))
    record = json.loads((tmp_path / "status.json").read_text())
    keys += f" parts recoveries {MESSAGE} exit_code namespace finished_step"
    assert set(keys.split()) == set(record)
    assert (record["parts"], record[MESSAGE]) == ({"vLLM 0": "restarting"}, "why")


def test_a_written_status_is_read(tmp_path):
    wait = {"lane": "rollout", "name": "train task 1, member 0", "state": "tool", "seconds": 7.5}
    written = moment(waits=[wait], num_waits=30, component_status={"vLLM 0": "restarting"})
    write_state(tmp_path, written)
    assert read_state(tmp_path) == written
    assert [path.name for path in tmp_path.iterdir()] == ["status.json"]


@pytest.mark.parametrize(
    ("values", "verdict", "code"),
    [
        ({}, "running", 10),
        ({"state": "ending"}, "ending", 10),
        ({"state": "stalled"}, "stalled", 11),
        ({"state": "stalled", "exit_code": 75, "born": "gone"}, "stalled", 11),
        ({"state": "stalled", "born": "gone"}, "dead", 12),
        ({"born": "another process has the number"}, "dead", 12),
        ({"state": "ending", "born": "gone"}, "dead", 12),
        ({"host": "elsewhere", "born": "there"}, "running", 10),
        ({"host": "elsewhere", "born": "there", "written": time.time() - 900}, "silent", 15),
        ({"host": "elsewhere", "state": "ending", "written": time.time() - 900}, "silent", 15),
        ({"host": "elsewhere", "state": "finished", "written": time.time() - 900}, "finished", 0),
        ({"namespace": "pid:[1]", "born": "there"}, "running", 10),
        ({"namespace": "pid:[1]", "written": time.time() - 900}, "silent", 15),
        ({"namespace": "", "born": "gone"}, "dead", 12),
        ({"state": "finished", "born": "gone"}, "finished", 0),
        ({"born": "gone", "finished_step": 3}, "finished", 0),
        ({"born": "gone", "finished_step": 2}, "dead", 12),
        ({"state": "interrupted", "born": "gone"}, "interrupted", 13),
        ({"state": "failed", "exit_code": 76, "born": "gone"}, "failed", 14),
    ],
)
def test_the_verdict_and_its_exit_code(tmp_path, capsys, values, verdict, code):
    write_state(tmp_path, moment(**values))
    assert read_state(tmp_path).verdict == verdict
    assert status([str(tmp_path)]) == code
    assert capsys.readouterr().out.startswith(f"{verdict}  step 3/9  process ")
    assert status([f"run={tmp_path}", "follow=true"] if verdict in DONE else [str(tmp_path)]) == (
        code
    )


DONE = ("finished", "interrupted", "failed", "dead", "silent")


@pytest.mark.parametrize(
    ("values", "where"),
    [
        ({"host": "elsewhere"}, "elsewhere"),
        ({"namespace": "pid:[1]"}, f"{platform.node()}, in another PID namespace"),
    ],
)
def test_status_of_a_process_that_is_not_visible(tmp_path, capsys, values, where):
    write_state(tmp_path, moment(written=time.time() - 900, **values))
    assert status([str(tmp_path)]) == 15
    reported = capsys.readouterr().out
    assert (
        f"the process is on {where}, not visible from here, and wrote nothing for 900 s" in reported
    )
    assert "dead" not in reported
    assert "the process is gone" not in reported


def test_a_zombie_process_counts_as_gone():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert born_at(child.pid) not in ("", born_at(os.getpid()))
    child.kill()
    end = time.monotonic() + 30
    while born_at(child.pid) and time.monotonic() < end:
        time.sleep(0.02)
    assert born_at(child.pid) == "", "a zombie"
    child.communicate(timeout=30)
    assert born_at(child.pid) == ""


def test_status_shows_the_troubles_of_a_live_run(tmp_path, capsys):
    waits = [
        {"lane": "rollout", "name": f"train task {i}, member 0", "state": "tool", "seconds": 9.0}
        for i in range(40)
    ]
    state = moment(written=time.time() - 30, loop_s=20.0, recoveries=2, message="why", waits=waits)
    state.num_waits, state.component_status = 250, {"vLLM 0": "restarting"}
    write_state(tmp_path, state)
    assert status([str(tmp_path), "most=3"]) == 10
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "the process wrote nothing for 30 s: is it suspended?" in lines
    assert "the event loop did not respond for 20 s: code blocks it" in lines
    assert "episodes were restarted 2 time(s)" in lines
    assert "why" in lines
    assert any(line.startswith("last progress 32.") for line in lines)
    assert sum(line.startswith("rollout") for line in lines) == 3
    assert "and 247 more" in lines
    assert any(line.split() == ["policy", "vLLM", "0", "restarting"] for line in lines)


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    def refused(folder):
        assert status([str(folder)]) == 1
        (line,) = capsys.readouterr().err.splitlines()
        return line.removeprefix("error: ")

    with pytest.raises(UsageError, match="holds no run"):
        read_state(tmp_path)
    assert (
        refused(tmp_path) == f"run ({tmp_path}) holds no run: give the folder of a run of rl.train"
    )
    for name in ("search", "math"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        write_state(tmp_path / "runs" / name, moment())
    runs = tmp_path / "runs"
    assert refused(runs) == f"run ({runs}) holds no run: give one of {runs}/math, {runs}/search"
    assert refused(runs / "serch") == (
        f"run ({runs}/serch) does not exist: no such folder. Did you mean '{runs}/search'?"
    )
    (runs / "sft").mkdir()
    (runs / "sft" / "config.json").write_text("{}")
    assert refused(runs / "sft").startswith(f"run ({runs}/sft) has no status.json: rl.train writes")
    (tmp_path / "status.json").write_text("{")
    assert status([str(tmp_path)]) == 1
    assert "cannot be read" in capsys.readouterr().err


WAIT = {"lane": "rollout", "name": "train task 1", "state": "tool", "seconds": 1.0}


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({"step": [1]}, "step ([1]) must be int"),
        ({"written": "noon"}, "written ('noon') must be float"),
        ({"progress": None}, "progress (None) must be str"),
        ({"exit_code": "1"}, "exit_code ('1') must be int or None"),
        ({"num_waits": True}, "num_waits (True) must be int"),
        ({MESSAGE: 7}, f"{MESSAGE} (7) must be str"),
        ({"state": "asleep"}, "state ('asleep') must be one of "),
        ({"waits": {"lane": "rollout"}}, "waits ({'lane': 'rollout'}) must be a list"),
        ({"waits": [WAIT, "a tool"]}, "waits ('a tool') must be lane, name, state and seconds"),
        ({"waits": [WAIT | {"seconds": "long"}]}, "seconds ('long') must be float"),
        ({"waits": [WAIT | {"name": 3}]}, "name (3) must be str"),
        ({"waits": [{"lane": "rollout"}]}, "must be lane, name, state and seconds"),
        ({"parts": []}, "parts ([]) must be a dict"),
        ({"parts": {"vLLM 0": 3}}, "vLLM 0 (3) must be str"),
        ({"progress": ["x" * 999] * 9}, "...) must be str"),
    ],
)
def test_values_of_other_types_are_one_line(tmp_path, capsys, values, reported):
    path = tmp_path / "status.json"
    path.write_text(json.dumps(asdict(moment()) | values))
    assert status([str(tmp_path)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {tmp_path} holds no status of a run: {path} cannot be")
    assert reported in line
    assert len(line) < 400


def test_numbers_without_a_fraction_are_seconds_too(tmp_path):
    (tmp_path / "status.json").write_text(json.dumps(asdict(moment(loop_s=3, progress_s=2))))
    assert read_state(tmp_path).loop_s == 3
