"""``python -m rl.view`` in a terminal: texts, the exported file, and wrong settings."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter

import pytest
from viewer_runs import episode, write_run, write_step

from rl.rollout.trajectory import TrajectoryGroup
from rl.view import main


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    return write_run(tmp_path / "runs" / "a")


def test_the_runs_of_a_folder_as_text(run, capsys):
    assert main([str(run.parent), "text=true"]) == 0
    line = r"a +finished +search-qa-v0  grpo  step 3/3  0.25 -> 0.75\n"
    assert re.match(line, capsys.readouterr().out)


def test_the_runs_as_text_name_what_is_wrong(run, capsys):
    cut = {"num_groups": 3, "completions/clipped_ratio": 0.9}
    with (run / "metrics.jsonl").open("a") as file:
        file.writelines(json.dumps({"step": step} | cut) + "\n" for step in range(4, 14))
    assert main([str(run.parent), "text=true"]) == 0
    assert re.search(r"\n  (high|medium): .*answers.* cut", capsys.readouterr().out)


def test_an_empty_folder_as_text_says_how_to_make_a_run(tmp_path, capsys):
    assert main([str(tmp_path), "text=true"]) == 0
    assert "holds no run: python -m rl.train env=search-qa" in capsys.readouterr().out


def test_the_episodes_of_a_run_as_text(run, capsys):
    assert main([str(run), "--text"]) == 0
    shown = capsys.readouterr().out
    assert "18 episodes, the newest first" in shown
    assert re.search(r"step-000003/1 +0\.000  finished +I do not know", shown)


def test_the_text_counts_all_episodes_and_names_unreadable_files(run, capsys, monkeypatch):
    monkeypatch.setattr("rl.viewer.api._INDEXING_S", 0.0)
    odd = episode("q", "a", float("nan"))
    write_step(run, "step-000008", [TrajectoryGroup([odd])])
    (run / "trajectories" / "step-000009.jsonl.gz").write_bytes(b"no gzip")
    assert main([str(run), "text=true"]) == 0
    shown = capsys.readouterr().out
    assert "19 episodes, the newest first" in shown
    assert re.search(r"step-000008/0 +nan  finished", shown)
    assert re.search(r"not read: .*step-000009.jsonl.gz", shown)


def test_an_episode_as_text(run, capsys):
    assert main([str(run), "text=true", "episode=step-000002/5"]) == 0
    shown = capsys.readouterr().out
    assert "task 2  step-000002/5  member 1 of 2" in shown
    assert "reward 0.000  advantage -0.500  finished" in shown
    assert "--- turn 1  4 tokens  0.50 s\nlook" in shown
    call = 'search {"query": "Question 2 of step 2: who is the friend?"}'
    assert f"---   {call}  0.12 s  retries 2  HTTP 200\nThe friend is Bali." in shown
    assert "--- environment  0.25 s  right 0\n" in shown


def test_text_for_a_terminal_has_no_control_characters(run, capsys):
    hostile = episode("q", "\x07", 1.0)
    hostile.observation = "\x1b[2J\u202e\udc9b"
    write_step(run, "step-000009", [TrajectoryGroup([hostile])])
    assert main([str(run), "text=true", "episode=step-000009/0"]) == 0
    shown = capsys.readouterr().out
    assert "<U+001B>[2J<U+202E><U+DC9B>" in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202e]", shown)


def test_a_message_about_a_run_has_no_control_characters(run, capsys):
    write_run(run.parent / "\x1b[31m")
    assert main([str(run.parent), "export=x.html"]) == 1
    error = capsys.readouterr().err
    assert "<U+001B>[31m" in error
    assert "\x1b" not in error


@pytest.mark.parametrize("asked", [1, 5, 10, 15, 40])
def test_an_export_has_as_many_episodes_as_asked_for_in_whole_groups(tmp_path, asked, capsys):
    run = write_run(tmp_path / "a")
    for step in range(4, 14):
        group = TrajectoryGroup([episode("q", "a", 1.0) for _ in range(5)])
        for member, one in enumerate(group.trajectories):
            one.member = member
        write_step(run, f"step-{step:06d}", [group])
    path = tmp_path / "out.html"
    assert main([str(run), f"export={path}", f"episodes={asked}"]) == 0
    shown = capsys.readouterr().err
    count = int(re.search(r"(\d+) episodes and all", shown)[1])
    assert asked <= count < asked + 5
    assert (f"episodes={asked} ends within a group" in shown) == (count > asked)
    (data,) = re.findall(
        r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8")
    )
    rows = json.loads(data)["rows"]
    assert len(rows) == count
    sizes = Counter((row["file"], row["grp"]) for row in rows)
    assert all(n == 5 for (file, _), n in sizes.items() if file >= "step-000004")


def test_the_exported_file_holds_the_episodes_and_a_policy_of_its_own(run, tmp_path, capsys):
    hostile = episode("</script><script>alert(1)</script><!--", "x", 1.0)
    write_step(run, "step-000009", [TrajectoryGroup([hostile])])
    path = tmp_path / "out.html"
    assert main([str(run), f"export={path}", "episodes=6"]) == 0
    assert "7 episodes" in capsys.readouterr().err
    page = path.read_text(encoding="utf-8")
    assert "<script>alert(1)" not in page
    assert "/page/" not in page.split("<body>")[0]
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    answers = json.loads(data)
    assert answers["run"]["of_episodes"] == 19
    assert {row["file"] for row in answers["rows"]} >= {"step-000001", "step-000009"}
    assert answers["episodes"]["step-000009/0"]["tokens"]["segments"][0]["mask"]
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', page)
    assert "unsafe" not in policy
    parts = re.findall(r"<(?:script|style)>(.*?)</(?:script|style)>", page, re.DOTALL)
    assert len(parts) > 5
    for part in parts:
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "run (nowhere) does not exist: give a run's folder"),
        (["{run}/config.json"], "is a file: give a run's folder or a folder of runs"),
        (["{run}/checkpoints", "export=x.html"], "holds no run: python -m rl.train"),
        (["port=70000"], "port (70000) must be from 0 to 65535"),
        (["host="], "host is empty: give an address such as 127.0.0.1"),
        (["prot=1"], "unknown key 'prot'. Did you mean 'port'?"),
        (["{runs}", "export=x.html"], "holds 2 runs: give the folder of one: {runs}/a, {runs}/b\n"),
        (["{run}", "text=true", "episode=5"], "must have the form step-000012/3"),
        (["{run}", "text=true", "episode=step-000001/99"], "has no episode step-000001/99"),
        (["{run}", "episode=step-000001/1"], "needs text=true"),
    ],
)
def test_mistakes_are_one_line(run, capsys, words, message):
    write_run(run.parent / "b")
    given = [word.format(run=run, runs=run.parent) for word in words]
    assert main(given) == 1
    error = capsys.readouterr().err
    assert message.format(run=run, runs=run.parent) in error
    assert error.count("\n") == 1


def test_a_message_that_names_some_runs_says_how_many_there_are(run, capsys):
    for name in "bcde":
        write_run(run.parent / name, steps=1)
    assert main([str(run.parent), "export=x.html"]) == 1
    named = ", ".join(f"{run.parent}/{name}" for name in "abc")
    assert capsys.readouterr().err.endswith(f"one: {named}, ... (5 in all)\n")


def test_counts_of_one_are_in_the_singular(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    folder = write_run(tmp_path / "a", steps=0)
    assert main([str(folder), "text=true"]) == 0
    assert capsys.readouterr().out.endswith("\n0 episodes\n")
    one = episode("q", "a", 1.0)
    write_step(folder, "step-000001", [TrajectoryGroup([one])])
    assert main([str(folder), "text=true"]) == 0
    assert "\n1 episode, the newest first" in capsys.readouterr().out
    assert main([str(folder), "text=true", "episode=step-000001/0"]) == 0
    assert "--- turn 2  1 token  0.50 s\na" in capsys.readouterr().out
