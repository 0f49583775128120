"""The viewer's server: its answers, its headers, and requests that it refuses."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gzip
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import urllib.request
import zipfile

import pytest
from aiohttp.test_utils import TestClient, TestServer
from viewer_runs import episode, write_run, write_step

from rl.errors import UsageError
from rl.rollout.trajectory import TrajectoryGroup
from rl.viewer.api import ANSWERS
from rl.viewer.findings import read_played
from rl.viewer.runs import Runs
from rl.viewer.server import PAGE, application, is_local, serve

PLACE = {"run": "a", "file": "step-000002", "line": "4"}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    monkeypatch.setenv("TURNWISE_CACHE", str(tmp_path / "cache"))
    write_run(tmp_path / "runs" / "a")
    write_run(tmp_path / "runs" / "deep" / "b", steps=2, seed=1)
    made = Runs(tmp_path / "runs")
    yield made
    made.close()


@pytest.fixture
async def client(runs):
    async with TestClient(TestServer(application(runs, "127.0.0.1"))) as made:
        yield made


async def ask(client, name, **parameters):
    response = await client.get(f"/api/{name}", params=parameters)
    assert response.status == 200, await response.text()
    return await response.json()


async def test_runs_are_found_at_every_level_with_their_results(client):
    answer = await ask(client, "runs")
    assert [run["name"] for run in answer["runs"]] == ["a", "deep/b"]
    first = answer["runs"][0]
    assert (first["env"], first["algo"], first["steps"]) == ("search-qa-v0", "grpo", 3)
    assert first["reward"] == [0.25, 0.5, 0.75]
    assert first["result"]["after"]["success"] == 0.75


async def test_a_run_has_its_settings_and_counts(client):
    run = await ask(client, "run", run="deep/b")
    assert run["config"]["env.options.max_turns"] == "2"
    assert run["counts"]["kind"] == {"train": 12}
    assert run["files_left"] == 0


async def test_curves_have_intervals_where_the_run_recorded_them(client):
    answer = await ask(client, "curves", run="a")
    curves = {curve["name"]: curve for curve in answer["curves"]}
    assert curves["reward"]["steps"] == [1, 2, 3]
    assert curves["reward"]["low"] == pytest.approx([0.15, 0.4, 0.65])
    assert (curves["eval/success"]["steps"], "low" in curves["eval/success"]) == ([0, 3], False)
    answer = await ask(client, "curves", run="a", names="time/*")
    assert [curve["name"] for curve in answer["curves"]] == [
        "time/learner/learn",
        "time/rollout/generate",
        "time/rollout/idle",
        "time/wall",
    ]


async def test_episodes_are_listed_in_parts(client):
    answer = await ask(client, "episodes", run="a", low="1", offset="2", limit="3")
    assert answer["total"] == 9
    assert [(row["file"], row["line"]) for row in answer["rows"]] == [
        ("step-000003", 4),
        ("step-000002", 0),
        ("step-000002", 2),
    ]


async def test_an_episode_has_its_turns_and_its_group(client):
    answer = await ask(client, "episode", **PLACE)
    assert [turn["action"] for turn in answer["turns"]] == ["look", "Bali"]
    (call,) = answer["turns"][0]["tool_calls"]
    assert call["text"] == "The friend is Bali."
    assert (call["seconds"], call["retries"], call["status"]) == (0.125, 2, "HTTP 200")
    assert [member["line"] for member in answer["group"]] == [4, 5]
    group = await ask(client, "group", **PLACE)
    assert [member["reward"] for member in group["members"]] == [1.0, 0.0]


async def test_tokens_have_the_numbers_of_the_sampler_and_of_the_learner(client):
    answer = await ask(client, "tokens", **PLACE)
    (segment,) = answer["segments"]
    assert "".join(segment["text"]).endswith("look" + "The friend is Bali." + "Bali")
    sampled = [i for i, mask in enumerate(segment["mask"]) if mask]
    assert [segment["text"][i] for i in sampled] == list("lookBali")
    assert [segment["version"][i] for i in sampled] == [0] * 4 + [1] * 4
    assert [segment["logprob"][i] for i in sampled[:3]] == pytest.approx([-0.1, -0.2, -0.3])
    assert [segment["ratio"][i] for i in sampled] == pytest.approx([1.25] * 8, rel=1e-4)
    assert {segment["advantage"][i] for i in sampled} == {0.5}
    context = segment["mask"].index(0)
    assert segment["advantage"][context] is None
    assert segment["logprob"][context] is None


async def test_tokens_without_the_learners_numbers_have_none_of_them(runs, client):
    write_step(
        runs.root / "a", "validation-000003", [TrajectoryGroup([episode("q", "é", 1.0)])], False
    )
    answer = await ask(client, "tokens", run="a", file="validation-000003", line="0")
    (segment,) = answer["segments"]
    assert not {"ratio", "advantage", "entropy"} & segment.keys()
    # The two bytes of a character are two tokens; the second one completes it.
    assert segment["text"][-2:] == ["", "é"]


async def test_two_runs_are_compared_on_shared_tasks(client):
    answer = await ask(client, "compare", run="a", other="deep/b", kind="train")
    assert answer["num_tasks"] == [3, 3, 3]
    row = answer["tasks"][0]
    assert (row["first"]["count"], row["second"]["count"], row["difference"]) == (6, 4, 0.0)
    assert (row["first"]["file"], row["second"]["file"]) == ("step-000003", "step-000002")


async def test_two_runs_are_compared_by_the_settings_that_differ(runs, client):
    answer = await ask(client, "compare", run="a", other="deep/b", kind="train")
    assert answer["settings"] == [
        {"name": "steps", "first": "3", "second": "2"},
        {"name": "seed", "first": "0", "second": "1"},
    ]
    path = runs.root / "deep" / "b" / "config.json"
    config = json.loads(path.read_text())
    del config["seed"]
    path.write_text(json.dumps(config | {"steps": 3, "out": "elsewhere", "lr": [1, "x"]}))
    answer = await ask(client, "compare", run="a", other="deep/b", kind="train")
    assert answer["settings"][0] == {"name": "seed", "first": "0", "second": ""}
    assert [row["name"] for row in answer["settings"]] == ["seed", "lr"]


async def test_the_list_of_runs_names_the_worst_finding_without_reading_tokens(
    runs, client, monkeypatch
):
    monkeypatch.setattr("rl.viewer.runs.read_played", pytest.fail)
    with (runs.root / "a" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "num_groups": 3, "completions/clipped_ratio": 0.9}\n')
    listed = {run["name"]: run["worst"] for run in (await ask(client, "runs"))["runs"]}
    assert listed["deep/b"] is None
    assert (listed["a"]["key"], listed["a"]["severity"]) == ("answers_cut", "high")


async def test_numbers_that_json_lacks_become_null(runs, client):
    path = runs.root / "a" / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 4, "reward": NaN, "loss": Infinity}\n')
    response = await client.get("/api/curves", params={"run": "a", "names": "reward,loss"})
    curves = json.loads(await response.text(), parse_constant=pytest.fail)["curves"]
    assert [curve["values"][-1] for curve in curves] == [None, None]


async def test_a_running_run_grows(runs, client):
    path = runs.root / "a" / "metrics.jsonl"
    before = await ask(client, "curves", run="a", names="reward")
    with path.open("a") as file:
        file.write('{"step": 4, "reward": 1.0}\n{"step": 5, "rew')
    after = await ask(client, "curves", run="a", names="reward")
    assert [len(a["curves"][0]["steps"]) for a in (before, after)] == [3, 4]
    # A resumed run replaces the file with fewer lines.
    shorter = path.with_name("new")
    shorter.write_text('{"step": 1, "reward": 0.5}\n')
    shorter.replace(path)
    again = await ask(client, "curves", run="a", names="reward")
    assert again["curves"][0]["values"] == [0.5]


async def test_an_episode_that_a_resumed_run_plays_again_is_the_new_one(runs, client):
    before = await ask(client, "episode", **PLACE)
    assert before["turns"][1]["action"] == "Bali"
    again = [episode(f"Another question {i}", f"answer {i}", 0.5, member=i) for i in range(6)]
    write_step(runs.root / "a", "step-000002", [TrajectoryGroup(again)])
    after = await ask(client, "episode", **PLACE)
    assert after["turns"][1]["action"] == "answer 4"
    tokens = await ask(client, "tokens", **PLACE)
    assert "Another question 4" in "".join(tokens["segments"][0]["text"])


async def test_opening_an_episode_reads_its_file_only(runs, client):
    await ask(client, "episode", **PLACE)
    assert runs.run("a").index.counts()["kind"] == {"train": 6}
    response = await client.get("/api/episode", params=PLACE | {"line": "77"})
    assert response.status == 404
    response = await client.get(
        "/api/episode", params=PLACE | {"file": "../../a/trajectories/step-000001"}
    )
    assert response.status == 404
    assert runs.run("a").index.counts()["kind"] == {"train": 6}


async def test_the_page_has_a_strict_policy_and_no_content_from_elsewhere(client):
    response = await client.get("/")
    policy = response.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    page = await response.text()
    scripts = re.findall(r'<script src="/page/([a-z]+\.js)" defer></script>', page)
    assert len(scripts) == page.count("<script") == len(list(PAGE.glob("*.js")))
    for name in [*scripts, "viewer.css"]:
        answer = await client.get(f"/page/{name}")
        assert answer.status == 200
        assert answer.headers["Content-Security-Policy"] == policy


def test_the_page_never_makes_html_from_text():
    forbidden = re.compile(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|srcdoc"
        r"|javascript:|https?://(?!www\.w3\.org/2000/svg)"
    )
    for path in PAGE.iterdir():
        assert not forbidden.findall(path.read_text(encoding="utf-8")), path.name


async def test_an_unchanged_answer_is_not_sent_again(client):
    first = await client.get("/api/curves", params={"run": "a"})
    tag = {"If-None-Match": first.headers["ETag"]}
    second = await client.get("/api/curves", params={"run": "a"}, headers=tag)
    assert (second.status, await second.read()) == (304, b"")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:8765", 200),
        ("localhost:9999", 200),
        ("[::1]:1", 200),
        ("192.168.0.7", 200),
        ("evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example:8765", 403),
        ("[", 403),
    ],
)
async def test_names_of_other_sites_are_refused(client, host, status):
    response = await client.get("/api/runs", headers={"Host": host})
    assert response.status == status


def test_the_name_of_the_address_is_accepted():
    assert is_local("gpu-box:1", "gpu-box")
    assert not is_local("", "")


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/nothing", 404),
        ("/page/../server.py", 404),
        ("/page/%2e%2e%2fserver.py", 404),
        ("/api/run?run=../../etc", 404),
        ("/api/episode?run=a&file=../x&line=0", 404),
        ("/api/episode?run=a&file=step-000001&line=-1", 404),
        ("/api/episode?run=a&file=step-000001&line=99", 404),
        ("/api/episodes?run=a&step=x", 404),
    ],
)
async def test_wrong_requests_are_refused_in_a_line(client, path, status):
    response = await client.get(path)
    assert response.status == status
    assert len(await response.text()) < 300


async def test_a_hostile_run_is_only_data(runs, client):
    text = "<script>alert(1)</script>\u202e\u0000\udc00" + "x" * 2_000_000
    hostile = episode("q", "a", 1.0)
    hostile.observation, hostile.turns[0].action = text, text
    write_step(runs.root / "a", "step-000009", [TrajectoryGroup([hostile])])
    listed = await ask(client, "episodes", run="a", step="9", text="<SCRIPT>")
    assert listed["total"] == 1
    assert len(listed["rows"][0]["question"]) <= 160
    shown = await ask(client, "episode", run="a", file="step-000009", line="0")
    assert shown["observation"] == text


@pytest.mark.parametrize(
    "line",
    [
        '{"step": "x"}',
        '{"reward": 1.0, "num_groups": 2}',
        '{"step": 4, "num_groups": 3, "scores/format": null}',
        '{"step": 4, "num_groups": "a", "failures": "b"}',
        '{"step": 1e999, "reward": NaN}',
        '{"step": 4, "num_groups": 2, "failures": NaN, "failures/x": Infinity}',
        '{"step": 4, "num_groups": 2, "entropy": 1' + "0" * 400 + "}",
        "[" * 100_000,
    ],
)
async def test_an_odd_line_of_metrics_hides_nothing_else(runs, client, line):
    with (runs.root / "a" / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    for name in ("runs", "run", "curves"):
        await ask(client, name, run="a")
    assert (await ask(client, "run", run="a"))["counts"]["kind"] == {"train": 18}


async def test_an_odd_setting_or_name_leaves_a_remark_at_most(runs, client):
    (runs.root / "a" / "config.json").write_text('{"eval": {"tasks": "x"}, "staleness": [1]}')
    for path in (runs.root / "a" / "trajectories").glob("step-000003.*"):
        path.with_name(path.name.replace("000003", "000003-copy")).write_bytes(path.read_bytes())
    run = await ask(client, "run", run="a")
    assert [problem["key"] for problem in run["problems"]] == ["unread"]


async def test_a_folder_that_another_user_closed_is_left_out(runs, client, monkeypatch):
    whole = os.stat

    def refuse(path, *rest, **named):
        if "private/" in f"{path}":
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return whole(path, *rest, **named)

    (runs.root / "private").mkdir()
    monkeypatch.setattr(os, "stat", refuse)
    assert [run["name"] for run in (await ask(client, "runs"))["runs"]] == ["a", "deep/b"]


async def test_a_run_that_was_removed_is_one_line(runs, client):
    await ask(client, "run", run="a")
    shutil.rmtree(runs.root / "a")
    response = await client.get("/api/run", params={"run": "a"})
    assert response.status == 404
    assert "there is no such run" in (await response.json())["error"]


@pytest.mark.parametrize("model", ["my models/a b", "~no-such-user/x", "a" * 99 + "/b"])
async def test_tokens_show_ids_until_there_is_a_tokenizer(runs, client, model):
    folder = runs.root / "a"
    (folder / "config.json").write_text(json.dumps({"model": model}))
    tokenizer = folder / "checkpoints" / "best" / "tokenizer.json"
    whole = tokenizer.read_bytes()
    tokenizer.write_bytes(b"{")
    assert not (await ask(client, "tokens", **PLACE))["decoded"]
    tokenizer.write_bytes(whole)
    assert (await ask(client, "tokens", **PLACE))["decoded"]


async def test_an_environment_that_cannot_be_imported_or_draw_shows_its_texts(client, monkeypatch):
    def broken(*anything):
        raise RuntimeError("no such library")

    monkeypatch.setattr("envs.env_type", broken)
    shown = await ask(client, "episode", **PLACE)
    assert "pictures" not in shown
    assert shown["turns"][1]["action"] == "Bali"


async def test_the_file_of_tokens_is_read_once_for_all_segments(runs, client, monkeypatch):
    played = [episode(f"Question {i}", f"answer {i}", 0.5) for i in range(3)]
    many = dataclasses.replace(played[0], segments=[s for e in played for s in e.segments])
    write_step(runs.root / "a", "step-000009", [TrajectoryGroup([played[1], many])], learner=False)
    opened, whole = [], zipfile.ZipFile

    def count(path, *rest):
        opened.append(path)
        return whole(path, *rest)

    monkeypatch.setattr("rl.viewer.episodes.episode.zipfile.ZipFile", count)
    tokens = await ask(client, "tokens", run="a", file="step-000009", line="1")
    texts = ["".join(segment["text"]) for segment in tokens["segments"]]
    assert [f"answer {i}" in text for i, text in enumerate(texts)] == [True] * 3
    assert len(opened) == 1


async def test_a_run_whose_name_is_no_text_has_a_link(runs, client):
    (runs.root / "a").rename(runs.root / os.fsdecode(b"my run \xff"))
    names = [run["name"] for run in (await ask(client, "runs"))["runs"]]
    assert names == ["deep/b", "my run \\xff"]
    listed = await ask(client, "episodes", run=names[1], text="Bali")
    assert listed["total"] == 18


async def test_metrics_of_a_run_that_starts_anew_replace_the_old_ones(runs, client):
    path = runs.root / "a" / "metrics.jsonl"
    assert (await ask(client, "run", run="a"))["steps"] == 3
    kept = path.rename(path.with_name("kept"))
    assert (await ask(client, "run", run="a"))["steps"] == 0
    again = "".join(json.dumps({"step": n, "reward": 0.25}) + "\n" for n in range(1, 30))
    kept.write_text(again)
    kept.rename(path)
    curves = (await ask(client, "curves", run="a", names="reward"))["curves"]
    assert curves[0]["steps"] == list(range(1, 30))


async def test_a_taken_port_is_one_line(runs):
    ready = asyncio.get_running_loop().create_future()
    first = asyncio.create_task(serve(runs, "127.0.0.1", 0, ready.set_result))
    port = int((await ready).rsplit(":")[-1].strip("/"))
    with pytest.raises(UsageError, match=f"port={port} is in use, .*choose another port"):
        await serve(runs, "127.0.0.1", port, ready.set_result)
    for host in ("192.0.2.1", "no-such-name.invalid"):
        with pytest.raises(UsageError, match=f"host={host} is no address of this machine"):
            await serve(runs, host, 0, ready.set_result)
    first.cancel()
    await asyncio.wait([first])


def test_a_run_that_is_the_folder_itself_is_the_only_one(tmp_path):
    runs = Runs(write_run(tmp_path / "single"))
    assert (runs.single, list(runs.find())) == (True, ["single"])
    with pytest.raises(UsageError, match="does not exist: give a run's folder"):
        Runs(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="there is no such run"):
        runs.run("other")


def test_the_command_serves_until_it_is_stopped(tmp_path):
    write_run(tmp_path / "runs" / "a")
    command = [sys.executable, "-m", "rl.view", str(tmp_path / "runs"), "port=0"]
    # A job in the background of a shell ignores interrupts, and so do its children.
    ignores = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    stop = signal.SIGTERM if ignores else signal.SIGINT
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stderr.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+/", line)[0]
            with urllib.request.urlopen(f"{address}api/runs", timeout=60) as response:
                assert json.load(response)["runs"][0]["name"] == "a"
            process.send_signal(stop)
            assert process.wait(timeout=60) == 130
        finally:
            process.kill()


def test_every_answer_is_in_use_by_the_page():
    script = "".join(path.read_text(encoding="utf-8") for path in PAGE.glob("*.js"))
    asked = set(re.findall(r'view\.api\("(\w+)"', script))
    assert asked == set(ANSWERS)


async def test_a_problem_names_the_episodes_that_show_it(runs, client):
    run = write_run(runs.root / "broken", steps=1)
    failed = [
        episode("q", "a", 0.0, member=member, terminated=False, failure="EnvFailure: gone")
        for member in range(2)
    ]
    write_step(run, "step-000001", [TrajectoryGroup(failed)], False)
    record = {"step": 1, "num_groups": 1.0, "num_groups_dropped": 0.0, "no_gradient/failed": 1.0}
    line = json.dumps(record | {"failures": 2.0, "failures/EnvFailure": 2.0})
    (run / "metrics.jsonl").write_text(f"{line}\n")
    (problem,) = (await ask(client, "run", run="broken"))["problems"]
    assert (problem["key"], problem["severity"]) == ("failures", "high")
    listed = await ask(client, "episodes", run="broken", **problem["query"])
    assert listed["total"] == 2
    assert {row["failure"] for row in listed["rows"]} == {"EnvFailure"}


async def test_an_environment_draws_its_episodes(runs, client):
    board = episode("1 _ 3 4\n3 4 _ 2\n_ 1 4 3\n4 3 2 _", "x", 1.0, member=0)
    board.env_id = "sudoku-v0"
    unknown = episode("q", "x", 1.0, member=1)
    unknown.env_id = "/tmp/file.py:Env"
    write_step(runs.root / "a", "step-000008", [TrajectoryGroup([board, unknown])])
    shown = await ask(client, "episode", run="a", file="step-000008", line="0")
    grid, *rest = shown["pictures"]
    assert grid["rows"][0][0] == {"text": "1", "mark": "given"}
    assert rest == [None, None]
    # The file of an environment is never imported.
    shown = await ask(client, "episode", run="a", file="step-000008", line="1")
    assert "pictures" not in shown


async def test_tokens_that_cannot_be_checked_are_a_remark(runs, client):
    (runs.root / "a" / "trajectories" / "step-000003.npz").write_bytes(b"damaged")
    problems = (await ask(client, "run", run="a"))["problems"]
    remark = problems[-1]
    assert (remark["severity"], remark["title"]) == (
        "low",
        "The tokens of the newest steps were not checked.",
    )
    assert "step-000003" in remark["detail"]


async def test_damaged_numbers_of_the_learner_hide_no_episode(runs, client):
    (runs.root / "a" / "trajectories" / "step-000003.learner.npz").write_bytes(b"damaged")
    answer = await ask(client, "episodes", run="a", step="3")
    assert answer["total"] == 6
    assert {row["advantage"] for row in answer["rows"]} == {None}
    run = await ask(client, "run", run="a")
    (error,) = run["errors"]
    assert "step-000003.learner.npz is damaged" in error
    tokens = await ask(client, "tokens", run="a", file="step-000003", line="0")
    assert "is damaged" in tokens["damaged"]
    assert "advantage" not in tokens["segments"][0]
    assert (await ask(client, "tokens", **PLACE))["damaged"] == ""


async def test_a_group_is_read_from_its_file_in_one_pass(runs, client, monkeypatch):
    await ask(client, "episodes", run="a")
    opened = []
    real = gzip.open

    def counted(path, *rest):
        opened.append(path)
        return real(path, *rest)

    monkeypatch.setattr(gzip, "open", counted)
    group = await ask(client, "group", **PLACE)
    assert len(group["members"]) == 2
    assert len(opened) == 1


async def test_a_run_opens_while_the_tokens_of_its_newest_steps_are_read(runs, client, monkeypatch):
    reading = threading.Event()

    def slow(folder):
        assert reading.wait(60.0)
        return read_played(folder)

    monkeypatch.setattr("rl.viewer.runs.read_played", slow)
    try:
        assert (await ask(client, "run", run="a"))["checked"] is False
    finally:
        reading.set()
    problems, checked = await asyncio.to_thread(runs.run("a").problems, 60.0)
    assert checked
    assert (await ask(client, "run", run="a"))["problems"] == problems
