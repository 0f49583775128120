"""``rl.sft`` and ``rl.eval`` from their command lines to their last line."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

import rl.distill
import rl.eval
import rl.sft
from rl.rollout.trajectory_files import read_trajectories
from rl.run.folder import read_jsonl

COMMON = ("env=toy-copy", "sampling.max_tokens=3", "sampling.slots=24")


def result(capfd):
    stdout, stderr = capfd.readouterr()
    return json.loads(stdout), stderr


@pytest.mark.quick
def test_supervised_learning_on_a_file_and_evaluation_of_its_result(toy_model, tmp_path, capfd):
    data = tmp_path / "data.jsonl"
    lines = [
        {"messages": [{"role": "user", "content": d}, {"role": "assistant", "content": d}]}
        for d in "012"
    ]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "sft"
    words = [f"model={toy_model}", f"data={data}", "steps=30", "batch_size=6", "test_tasks=24"]
    words += ["optimizer.lr=3e-3", f"out={out}"]
    assert rl.sft.main([*COMMON, *words]) == 0
    reported, stderr = result(capfd)
    assert reported["model"] == str(out / "checkpoints" / "last")
    assert reported["steps"] == 30
    assert reported["last_loss"] < 0.1 < reported["first_loss"]
    assert reported["before"] < 0.8
    assert reported["after"] > 0.95
    assert stderr.count("test tasks: right ") == 2
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    tests = [(record["step"], record["test/success"]) for record in lines if "loss" not in record]
    assert tests == [(0, reported["before"]), (30, reported["after"])]
    steps = [record for record in lines if "loss" in record]
    assert [record["step"] for record in steps] == list(range(1, 31))
    assert (steps[0]["loss"], steps[-1]["loss"]) == (reported["first_loss"], reported["last_loss"])
    assert json.loads((out / "config.json").read_text())["batch_size"] == 6
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")

    words = [f"model={toy_model}", f"data={data}", "steps=2", f"out={tmp_path}/alone"]
    assert rl.sft.main(words) == 0
    alone, stderr = result(capfd)
    assert (alone["before"], alone["after"], alone["steps"]) == (None, None, 2)
    assert stderr.splitlines()[0] == (
        f"supervised learning of {toy_model} on {data}: {tmp_path}/alone"
    )
    assert "sandbox" not in stderr
    card = (tmp_path / "alone" / "checkpoints" / "last" / "README.md").read_text()
    assert "data.jsonl" in card and "code-sandbox" not in card

    folder = tmp_path / "eval"
    words = ["--json", f"model={reported['model']}", "tasks=10", "episodes=3", f"out={folder}"]
    assert rl.eval.main([*COMMON, *words, "split=validation"]) == 0
    measured, _ = result(capfd)
    assert (measured["tasks"], measured["played"]) == (10, "10 of 24 validation tasks")
    assert measured["interval_of"].startswith("tasks like these 10, each played 3")
    assert (measured["episodes"], measured["split"], measured["score"]) == (
        30,
        "validation",
        "right",
    )
    assert measured["success"] > 0.9
    assert measured["success_low"] < measured["success"] <= measured["success_high"]
    assert measured["reward"] == pytest.approx(measured["success"])
    assert json.loads((folder / "result.json").read_text()) == measured
    episodes = read_trajectories(folder / "trajectories.jsonl.gz")
    right = [sum(e.reward == 1 for e in episodes[i : i + 3]) for i in range(0, 30, 3)]
    assert measured["pass@1"] == pytest.approx(sum(right) / 30)
    # Of three episodes there are three pairs; with one right one, two of them have it.
    assert measured["pass@2"] == pytest.approx(sum([0, 2 / 3, 1, 1][n] for n in right) / 10)
    assert "pass@4" not in measured
    for episode in episodes:
        episode.check()
    assert sum(e.reward for e in episodes) / 30 == pytest.approx(measured["reward"])
    assert [e.task for e in episodes] == [i // 3 for i in range(30)]
    assert {e.env_options["split"] for e in episodes} == {"validation"}


def test_supervised_learning_on_demonstrations(toy_model, tmp_path, capfd):
    words = [f"model={toy_model}", "demonstrations=1000", "steps=2", "test_tasks=0"]
    assert rl.sft.main([*COMMON, *words, f"out={tmp_path}/sft"]) == 0
    reported, _ = result(capfd)
    assert (reported["before"], reported["after"], reported["steps"]) == (None, None, 2)
    # The toy's author is right with 0.4 + 0.6 / 3: its words have 0.475 nats per token.
    assert reported["first_loss"] == pytest.approx(0.475, abs=0.1)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_learn_what_one_process_learns(toy_model, tmp_path, capfd, ranks):
    """Also with fewer conversations in a step than ranks."""
    words = [f"model={toy_model}", "demonstrations=24", "steps=5", "batch_size=2", "test_tasks=0"]
    losses, weights = [], []
    for count in (1, ranks):
        out = tmp_path / str(count)
        assert rl.sft.main([*COMMON, *words, f"learner.ranks={count}", f"out={out}"]) == 0
        losses.append([r["loss"] for r in read_jsonl(out / "metrics.jsonl") if "loss" in r])
        weights.append(load_file(out / "checkpoints" / "last" / "model.safetensors"))
    assert len(losses[0]) == 5
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert weights[0].keys() == weights[1].keys()
    for name, x in weights[0].items():
        assert torch.allclose(weights[1][name], x, atol=1e-5), name


def test_two_evaluations_of_the_same_weights_are_equal(toy_model, tmp_path, capfd):
    words = [*COMMON, f"model={toy_model}", "tasks=12", "deterministic=true", "json=true"]
    measured = []
    for _ in range(2):
        assert rl.eval.main(words) == 0
        measured.append(result(capfd)[0])
    assert measured[0] == measured[1]
    assert measured[0]["success"] < 1
    assert rl.eval.main([*words, "seed=1", "episodes=2"]) == 0
    assert result(capfd)[0]["episodes"] == 24


def test_an_evaluation_is_a_table_for_people(toy_model, capfd):
    words = [*COMMON, f"model={toy_model}", "tasks=10", "episodes=2", "deterministic=true"]
    assert rl.eval.main([*words, "--json"]) == 0
    reported, stderr = result(capfd)
    assert stderr.splitlines()[:2] == [
        f"evaluation of {toy_model} in toy-copy-v0",
        "playing 10 of 24 test tasks, each 2 times, policy local",
    ]
    assert rl.eval.main(words) == 0
    rows = dict(line.split("  ", 1) for line in capfd.readouterr().out.splitlines())
    rows = {name: value.strip() for name, value in rows.items()}
    low, high = reported["success_low"], reported["success_high"]
    assert rows["right"] == f"{reported['success']:.3f}  95% interval [{low:.3f}, {high:.3f}]"
    assert rows["environment"] == "toy-copy-v0"
    assert rows["tasks"] == "10 of 24 test tasks"
    assert rows["episodes"] == "20"
    assert rows["pass@2"].startswith(f"{reported['pass@2']:.3f}  95% interval [")
    assert rows["sampling"].startswith("temperature 1, top_p 1, top_k 0, seed 0, at most 3 tokens")
    assert rows["turns"] == f"{reported['num_turns']:.2f} per episode"
    assert "failed episodes" not in rows


@pytest.mark.parametrize(
    ("main", "words", "line"),
    [
        (rl.sft.main, ["data=/no/file"], 'data (/no/file) must be "demonstrations" or a file'),
        (rl.sft.main, ["steps=0"], "steps (0) must be >= 1"),
        (rl.sft.main, ["test_tasks=-1"], "test_tasks (-1) must be >= 0"),
        (rl.sft.main, ["env=toy-chatter"], "toy-chatter-v0 has no demonstrator"),
        (rl.eval.main, ["tasks=-1"], "tasks (-1) must be >= 0"),
        (rl.eval.main, ["split=all"], "split ('all') is for rows of a data set"),
        (rl.eval.main, ["algo=grpo"], "unknown key 'algo'."),
        (rl.eval.main, ["sampling.temperature=-1"], "sampling.temperature (-1.0) must be >= 0"),
        (rl.eval.main, ["model=/no/model"], "model (/no/model) "),
    ],
)
def test_a_users_mistake_is_one_line(toy_model, tmp_path, monkeypatch, capfd, main, words, line):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    out = f"out={tmp_path}/out"
    assert main([*COMMON, f"model={toy_model}", out, *words]) == 1
    stdout, stderr = capfd.readouterr()
    assert stdout == ""
    assert stderr.splitlines()[-1].startswith(f"error: {line}")
    assert "Traceback" not in stderr


@pytest.mark.parametrize("main", [rl.sft.main, rl.eval.main])
def test_the_folder_is_looked_at_before_the_work(tmp_path, capfd, main):
    (tmp_path / "file").touch()
    # A model that does not exist: with another order of things, that would be the error.
    assert main([*COMMON, "model=no/model", f"out={tmp_path}/file"]) == 1
    stdout, stderr = capfd.readouterr()
    assert stdout == ""
    expected = f"error: out ({tmp_path}/file) cannot be created or written: "
    assert stderr.startswith(expected)


def test_a_result_that_cannot_be_written_is_still_printed(toy_model, tmp_path, capfd):
    out = tmp_path / "out"
    (out / "trajectories.jsonl.gz").mkdir(parents=True)
    assert rl.eval.main([*COMMON, f"model={toy_model}", "tasks=4", f"out={out}", "--json"]) == 1
    reported, stderr = result(capfd)
    assert reported["episodes"] == 4
    assert stderr.splitlines()[-1].startswith(f"error: {out} cannot be written: ")


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (rl.eval.main, ["tasks=2"]),
        (rl.sft.main, ["steps=1"]),
        (rl.distill.main, ["tasks=2", "episodes=1"]),
    ],
)
def test_a_command_keeps_the_log_of_its_server(toy_model, tmp_path, capfd, main, words):
    python, out = tmp_path / "python", tmp_path / "out"
    python.write_text('#!/bin/sh\necho "ValueError: no GPU" >&2\nexit 1\n')
    python.chmod(0o755)
    served = [f"model={toy_model}", "policy=vllm-server", f"policy.python={python}"]
    assert main([*COMMON, *served, *words, f"out={out}"]) == 1
    log = out / "logs" / "vllm-0.log"
    assert (
        f"vLLM ended during its start: ValueError: no GPU (all of it: {log})"
        in capfd.readouterr()[1]
    )
    assert log.read_text() == "ValueError: no GPU\n"


def test_a_conversation_longer_than_the_window_is_one_line(toy_model, tmp_path, capfd):
    data = tmp_path / "data.jsonl"
    said = [("0", "0"), ("0", "1" * 60)]
    lines = [
        {"messages": [{"role": "user", "content": u}, {"role": "assistant", "content": a}]}
        for u, a in said
    ]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = [f"model={toy_model}", f"data={data}", f"out={tmp_path}/sft"]
    assert rl.sft.main([*COMMON, *words]) == 1
    stdout, stderr = capfd.readouterr()
    assert stdout == ""
    # After the line about the current work.
    assert stderr.splitlines()[1].startswith(
        "error: conversation 2 of 2 has 65 tokens, more than the model's window of 48: shorten it"
    ), "and no test task was played before"


def test_a_broken_line_of_messages_is_one_line(toy_model, tmp_path, capfd):
    data = tmp_path / "data.jsonl"
    data.write_text('{"messages": []}\n')
    assert rl.sft.main([*COMMON, f"model={toy_model}", f"data={data}"]) == 1
    error = capfd.readouterr().err.splitlines()[-1]
    assert error.startswith(f'error: {data}, line 1: expected {{"messages": [...]}} with user')
