"""The benchmark of multi-turn learning: its games, its accounting and its curves."""

from __future__ import annotations

import asyncio
import json
import random
import re
import sys
from pathlib import Path

import pytest
import torch
from aiohttp import web
from aiohttp.test_utils import TestServer
from scipy.stats import ttest_1samp
from transformers import Qwen3Config, Qwen3ForCausalLM

from agents.completion import FinishReason, SamplingParams
from benchmarks.multi_turn import harness
from benchmarks.multi_turn.__main__ import MARKS, _parser
from benchmarks.multi_turn.curves import chosen, summary
from benchmarks.multi_turn.games import (
    GAMES,
    LEDGER,
    MAX_TOKENS,
    MAX_TURNS,
    SPLITS,
    demonstrate,
    expert_success,
    make_tasks,
    play,
)
from benchmarks.multi_turn.harness import Point, Training
from benchmarks.multi_turn.job import Job
from benchmarks.multi_turn.trainers.reinforce import Sampler

HOME = Path(__file__).resolve().parents[2]


def make_job(folder, **values):
    known = {"game": "guess", "model": str(folder / "model"), "tasks": "", "play": "", "seed": 0}
    known |= {"tokens": 100, "seconds": 0.0, "threads": 1, "out": str(folder / "out")}
    return Job(**known | values)


@pytest.mark.parametrize("game", GAMES)
def test_an_agent_without_errors_solves_every_task_and_the_demonstrator_does_not(game):
    assert expert_success(game, 0.0) == 1.0
    assert 0.3 < expert_success(game, 1 / 3) < 0.8
    tasks = make_tasks(game, "train")
    assert tasks == make_tasks(game, "train")
    assert (len(tasks), len(make_tasks(game, "test"))) == (SPLITS["train"], SPLITS["test"])


def test_the_answers_of_the_games():
    boxes, guess = GAMES["boxes"].answer, GAMES["guess"].answer
    task = {"start": "42", "boxes": {"42": "17", "17": "red"}, "colour": "red"}
    assert boxes(task, "look 42").text == "17"
    assert boxes(task, " look  17 ").text == "red"
    assert boxes(task, "look 99").text == "empty"
    ends = [boxes(task, text).reward for text in ("answer red", "answer blue", "red", "")]
    assert ends == [1.0, 0.0, 0.0, 0.0]
    replies = [guess({"number": 7}, text) for text in ("3", "11", " 7", "seven")]
    assert [(r.text, r.reward) for r in replies] == [
        ("higher", None),
        ("lower", None),
        ("", 1.0),
        ("", 0.0),
    ]


def test_demonstrations_are_whole_episodes():
    for game in GAMES:
        for seed, task in enumerate(make_tasks(game, "train")[:50]):
            messages = demonstrate(task, seed)
            assert messages == demonstrate(task, seed)
            roles = [message["role"] for message in messages]
            assert roles == ["user", "assistant"] * (len(roles) // 2)
            assert len(roles) <= 2 * MAX_TURNS


async def test_an_episode_is_played_over_http_and_its_tokens_are_counted(tmp_path, monkeypatch):
    asked = []

    async def complete(request):
        body = await request.json()
        asked.append(body)
        seen = [
            f"{a['content']} {b['content']}"
            for a, b in zip(body["messages"][1::2], body["messages"][2::2], strict=True)
        ]
        said = GAMES["guess"].expert(task, seen, random.Random(0), 0.0)
        return web.json_response(
            {
                "choices": [{"message": {"role": "assistant", "content": said}}],
                "usage": {"prompt_tokens": 10, "completion_tokens": 3},
            }
        )

    monkeypatch.setenv(LEDGER, str(tmp_path / "ledger.jsonl"))
    task = {"game": "guess", "number": 4}
    app = web.Application()
    app.router.add_post("/v1/chat/completions", complete)
    async with TestServer(app) as server:
        assert await play(task, str(server.make_url("/v1"))) == 1.0
    assert [body["messages"][-1]["content"] for body in asked] == [
        "Guess from 0 to 14.",
        "lower",
        "higher",
        "lower",
    ]
    assert {(body["max_tokens"], body["temperature"]) for body in asked} == {(MAX_TOKENS, 1.0)}
    (line,) = (tmp_path / "ledger.jsonl").read_text().splitlines()
    episode = json.loads(line)
    assert (episode["reward"], episode["completion_tokens"]) == (1.0, 12)


def test_points_are_stamped_with_what_was_spent(tmp_path):
    job = make_job(tmp_path, tokens=100)
    out = tmp_path / "out"
    out.mkdir()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "trainer_state.pt").write_text("")
    ledger, done = out / "ledger.jsonl", Training()
    ledger.write_text('{"completion_tokens": 30}\n{"completion_tokens": 12}\n{"completion_to')
    job.hand_in(tmp_path / "model", 5)
    harness._count(job, done, 2.5)
    assert done.points == [Point(str(out / "points" / "000005"), 2.5, 42, 2)]
    assert [path.name for path in (out / "points" / "000005").iterdir()] == ["config.json"]
    ledger.write_text('{"completion_tokens": 142}\n')
    job.hand_in(tmp_path / "model", 6)
    harness._count(job, done, 3.0)
    assert harness._is_spent(job, done)
    job.hand_in(tmp_path / "model", 7)
    harness._count(job, done, 9.0)
    assert (done.seconds, len(done.points)) == (3.0, 2)
    # The second point was seen when the budget was spent already, and counts for no mark.
    assert [point.tokens for _, point in chosen(done.points, MARKS, job)] == [42, 42, 42]


TRAINER = """
import json, os, sys, time
from pathlib import Path
from benchmarks.multi_turn.job import Job
job = Job.read(sys.argv[-1])
job.hand_in(Path(job.model), 1)
while True:
    time.sleep(0.05)
    with open(os.environ["MULTI_TURN_LEDGER"], "a") as file:
        file.write(json.dumps({"completion_tokens": 5}) + "\\n")
"""


def test_a_trainer_is_interrupted_when_its_tokens_are_spent(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HOME))
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_text("w")
    job = make_job(tmp_path, tokens=20)
    done = harness.train([sys.executable, "-c", TRAINER], job)
    assert done.tokens >= 20
    # SIGINT ends Python by itself, or through a traceback.
    assert done.exit_code in (-2, 1, 130)
    assert done.peak_mib > 1
    assert Path(done.points[0].model, "weights").read_text() == "w"


def test_a_trainer_that_hands_in_nothing_is_an_error_with_its_last_words(tmp_path):
    with pytest.raises(RuntimeError, match=r"ended with 3 and handed in nothing: no weights"):
        harness.train(["sh", "-c", "echo no weights; exit 3"], make_job(tmp_path))


def test_marks_take_the_newest_point_before_them():
    points = [Point("a", 10.0, 30, 1), Point("b", 20.0, 50, 2), Point("c", 90.0, 55, 3)]
    job = make_job(Path(), tokens=100, seconds=100.0)
    found = {mark: point.model for mark, point in chosen(points, MARKS, job)}
    assert found == {0.4: "a", 0.6: "b", 0.8: "b", 1.0: "c"}


def test_the_summary_over_seeds():
    spent = {"seconds": 10.0, "tokens": 100, "peak_mib": 5, "peak_gpu_mib": 0}
    runs = [{"curve": [{"mark": 1.0, "success": last}], **spent} for last in (0.5, 0.7, 0.9)]
    found = summary(0.1, runs, (0.5, 1.0))
    interval = ttest_1samp([0.5, 0.7, 0.9], 0.0).confidence_interval(0.95)
    assert found["final"] == pytest.approx(
        {"mean": 0.7, "low": interval.low, "high": interval.high}
    )
    assert found["curve"][0] == pytest.approx({"mark": 0.5, "mean": 0.1, "low": 0.1, "high": 0.1})
    # The trapezoidal rule over 0.1, 0.1 and the last success.
    assert found["area"]["mean"] == pytest.approx((0.1 + (0.1 + 0.7) / 2) / 2)


def test_the_page_states_the_rules_of_the_code():
    page = (HOME / "docs" / "multi-turn-benchmark.md").read_text(encoding="utf-8")
    assert f"at most {MAX_TURNS} turns and a turn at most {MAX_TOKENS} sampled tokens" in page
    assert f"{SPLITS['train']:,} training tasks, and {SPLITS['test']} test tasks" in page
    assert "at 20, 40, 60, 80 and 100% of the budget" in page
    assert MARKS == (0.2, 0.4, 0.6, 0.8, 1.0)
    assert set(re.findall(r"^\| `(\w+)` \| (?:opens|finds)", page, re.M)) == set(GAMES)
    keys = {
        key
        for row in re.findall(r"^\| (`.*`) \|", page, re.M)
        for key in re.findall(r"`(\w+)`", row)
    }
    assert Job.__dataclass_fields__.keys() <= keys
    options = {word for action in _parser()._actions for word in action.option_strings}
    assert set(re.findall(r"`(--\w+)", page)) <= options


def test_the_pages_program_hands_in_a_checkpoint(tmp_path, monkeypatch):
    page = (HOME / "docs" / "multi-turn-benchmark.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    job = make_job(tmp_path)
    Path(job.out).mkdir()
    job.write(tmp_path / "job.json")
    (tmp_path / "model").mkdir()
    monkeypatch.setattr(sys, "argv", ["trainer", str(tmp_path / "job.json")])
    exec(code, {"checkpoint": tmp_path / "model", "step": 20})
    (line,) = (tmp_path / "out" / "points.jsonl").read_text().splitlines()
    assert json.loads(line) == {"model": str(tmp_path / "out" / "points" / "000020"), "step": 20}


def test_the_page_shows_the_recorded_results_of_one_seed():
    page = (HOME / "docs" / "multi-turn-benchmark.md").read_text(encoding="utf-8")
    file = HOME / "benchmarks" / "results" / "multi_turn" / "reinforce.json"
    games = json.loads(file.read_text(encoding="utf-8"))["games"]
    assert games.keys() == GAMES.keys()
    for game, measured in games.items():
        row = re.findall(rf"^\| `{game}` \| (0\..*) \|$", page, re.M)[1].split(" | ")
        found = measured["summary"]
        shares = [measured["before"], *(p["mean"] for p in found["curve"]), found["area"]["mean"]]
        assert row[:7] == [f"{share:.2f}" for share in shares]
        assert row[7:] == [f"{found['seconds']:.0f}", str(found["peak_mib"])]


async def test_the_sampler_over_transformers_records_what_the_model_computes():
    """Two prompts of different lengths are sampled in one batch, and none changes the other."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 11}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, max_position_embeddings=64)).eval()
    sampler = Sampler(model)
    sampling = SamplingParams(max_tokens=6, stop_token_ids=(1, 2))
    prompts = [[3, 4, 5, 6, 7], [8]] * 4
    found = await asyncio.gather(*(sampler.generate(ids, sampling) for ids in prompts))
    ends = set()
    for prompt, completion in zip(prompts, found, strict=True):
        ids = [*prompt, *completion.token_ids]
        with torch.no_grad():
            logprobs = model(torch.tensor([ids])).logits[0].log_softmax(-1)
        expected = [
            float(logprobs[at - 1, token]) for at, token in enumerate(ids) if at >= len(prompt)
        ]
        assert completion.logprobs == pytest.approx(expected, abs=1e-4)
        stopped = completion.finish_reason is FinishReason.STOP_TOKEN
        assert stopped == (completion.token_ids[-1] in (1, 2))
        assert not {1, 2} & set(completion.token_ids[:-1])
        ends.add(stopped)
    assert ends == {True, False}


def test_the_page_shows_the_recorded_results():
    page = (HOME / "docs" / "multi-turn-benchmark.md").read_text(encoding="utf-8")
    file = HOME / "benchmarks" / "results" / "multi_turn" / "turnwise.json"
    games = json.loads(file.read_text(encoding="utf-8"))["games"]
    assert games.keys() == GAMES.keys()
    for game, measured in games.items():
        row = re.findall(rf"^\| `{game}` \| (0\..*) \|$", page, re.M)[0].split(" | ")
        found = measured["summary"]
        assert row[0] == f"{measured['before']:.2f}"
        assert row[1:5] == [f"{point['mean']:.2f}" for point in found["curve"][:-1]]
        for cell, value in ((row[5], found["final"]), (row[6], found["area"])):
            assert cell == f"{value['mean']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"
        assert row[7:] == [f"{found['seconds']:.0f}", str(found["peak_mib"])]
