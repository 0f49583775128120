"""Recorded episodes play again: to the same, by another rubric, or with words for what differs."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import envs
import rl.data.conversations
from agents.completion import SamplingParams
from agents.renderer import Renderer
from agents.scripted import ScriptedPolicy
from envs.play import aplay, gold_of
from envs.replay import main
from rl.rollout.collector import Collector
from rl.rollout.context import EpisodeContext, EpisodeLimits
from rl.rollout.trajectory_files import write_trajectories
from rl.runtime.tiny import train_tokenizer

TASKS = range(4)
PLAYED = [
    ("search-qa", {"hops": "2"}),
    ("search-qa", {"hops": "2", "syntax": "r1-searcher", "top_n": 2, "max_turns": 5}),
    ("search-qa", {"syntax": "json", "token_budget": "max"}),
    ("math", {"tools": "calculator", "max_turns": 6, "level": 2}),
    ("mastermind", {"information_reward": 0.5}),
    ("knights-knaves", {}),
    ("swe-mini", {"files": 1, "tools": "read, fix"}),
]


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    exchange = rl.data.conversations.Exchange("a b", "c")
    return Renderer(train_tokenizer([rl.data.conversations.Conversation((exchange,))], 270))


async def record(renderer: Renderer, path: Path, name: str, options: dict[str, Any]) -> None:
    """Episodes of the gold policy, and of one that says less each turn, as rollouts write them."""
    env_id = envs.resolve(name)
    kind = envs.env_type(env_id)
    chosen = kind.Options(**options)
    async with kind.open_services(chosen) as services:
        said: dict[str, list[str]] = {}
        for task in TASKS:
            env = envs.make_from(env_id, chosen, services)
            said[str(task)] = list((await aplay(env, gold_of(env), seed=0, task=task)).actions)
        turns: dict[str | None, int] = {}

        def respond(session: str | None, _: Any) -> list[int]:
            assert session is not None
            task, member = session.split("/")[2:4]
            turn = turns[session] = turns.get(session, -1) + 1
            text = said[task][min(turn, len(said[task]) - 1)][int(member) * 7 :]
            return [*renderer.splice(text), renderer.end_token_ids[0]]

        collector = Collector(
            EpisodeContext(
                env_id=env_id,
                options=chosen,
                services=services,
                policy=ScriptedPolicy(respond),
                renderer=renderer,
                sampling=SamplingParams(max_tokens=400),
                limits=EpisodeLimits(context_length=20_000),
            ),
        )
        groups = await collector.collect(list(TASKS), 2, (5,))
    write_trajectories(path, groups)


def lines_of(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt") as file:
        return [json.loads(line) for line in file]


def rewrite(path: Path, lines: list[dict[str, Any]]) -> Path:
    changed = path.with_name("changed.jsonl")
    changed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return changed


@pytest.fixture(scope="module")
def searched(renderer, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("searched") / "episodes.jsonl.gz"
    asyncio.run(record(renderer, path, "search-qa", {"hops": "2"}))
    return path


@pytest.mark.parametrize(("name", "options"), PLAYED, ids=[f"{n} {o}" for n, o in PLAYED])
def test_episodes_play_again_to_what_they_were(renderer, tmp_path, name, options, capsys):
    path = tmp_path / "episodes.jsonl.gz"
    asyncio.run(record(renderer, path, name, options))
    assert main([str(path)]) == 0
    assert capsys.readouterr().out == (
        "8 episodes: 8 as recorded, 0 not; 0 failed and were not played\n"
    )


def test_the_record_is_a_story_that_stands_for_itself(searched):
    first = lines_of(searched)[0]
    assert first["observation"].startswith("The person is ")
    assert "<search>" in first["system"]
    assert first["env_id"] == "search-qa-v0"
    assert first["env_options"]["hops"] == "2"
    assert [call["turn"] for call in first["calls"]] == [1, 2]
    for call, turn in zip(first["calls"], first["turns"], strict=False):
        assert call["service"] == "search"
        assert call["arguments"]["query"] in turn["action"]
        assert call["text"] in turn["observation"]
        assert call["data"][0]["text"] == call["text"]
    assert first["tools"]["search"]["parameters"]["required"] == ["query"]


def test_tools_are_answered_from_the_record_alone(searched, capsys):
    lines = lines_of(searched)
    for line in lines:
        # The index does not exist: opening it would fail.
        line["env_options"]["retriever"] = "/no/such/index"
    assert main([str(rewrite(searched, lines))]) == 0
    lines[0]["calls"][1]["text"] = "The sport of Rumi is chess."
    assert main([str(rewrite(searched, lines))]) == 1
    line, summary = capsys.readouterr().out.splitlines()[-2:]
    assert line.startswith("line 1, search-qa-v0 task 0: turn 2: observation: recorded ' <result>")
    assert "now ' <result>\\nThe sport of Rumi is chess." in line
    assert summary == "8 episodes: 7 as recorded, 1 not; 0 failed and were not played"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda e: e.update(observation="Who?"), "turn 0: observation: recorded 'Who?', now 'The"),
        (lambda e: e["turns"][2]["rewards"].update(answer=0.5), "turn 3: rewards: recorded {"),
        (lambda e: e["turns"][2]["scores"].update(em=0.5), "turn 3: scores: recorded {"),
        (lambda e: e.update(terminated=False), "turn 3: terminated: recorded False, now True"),
        (
            lambda e: e.update(terminated=False, truncated=True, stop_reason="turn_limit"),
            "turn 3: stop_reason: recorded 'turn_limit', now nothing",
        ),
        (lambda e: e["calls"].pop(1), "turn 2: tool call: recorded nothing, now 'search {"),
        (
            lambda e: e["calls"][1].update(turn=3),
            "turn 2: tool call: recorded nothing, now 'search",
        ),
        (
            lambda e: e["calls"].append(e["calls"][1] | {"turn": 3}),
            "turn 3: tool call: recorded 'search {",
        ),
        (lambda e: e["turns"].insert(0, e["turns"][-1]), "turn 1: terminated: recorded False, now"),
        (
            lambda e: e.update(task=10**9),
            "turn 0: failure: recorded nothing, now 'ValueError: task",
        ),
    ],
)
def test_differences_are_reported(searched, capsys, change, message):
    lines = lines_of(searched)
    change(lines[0])
    assert main([str(rewrite(searched, lines))]) == 1
    *found, summary = capsys.readouterr().out.splitlines()
    assert any(message in line for line in found), found
    assert summary.startswith("8 episodes: 7 as recorded, 1 not")


def test_an_episode_that_the_rollout_cut_ends_where_it_was_cut(searched, capsys):
    lines = lines_of(searched)
    for line in lines[:1]:
        del line["turns"][2:], line["calls"][2:]
        line.update(terminated=False, truncated=True, stop_reason="context_full")
    lines[2].update(failure="EnvFailure: gone", terminated=False)
    assert main([str(rewrite(searched, lines))]) == 0
    assert capsys.readouterr().out == (
        "7 episodes: 7 as recorded, 0 not; 1 failed and were not played\n"
    )


def test_the_same_actions_by_another_rubric(searched, capsys):
    rubric = "f1 + 0.5*research_format"
    assert main([str(searched), "--rubric", rubric, "--limit", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "line 1, search-qa-v0 task 0: 1 recorded, 1.5 now"
    assert lines[-2].startswith("3 episodes: 3 as recorded")
    recorded = [sum(sum(t["rewards"].values()) for t in e["turns"]) for e in lines_of(searched)[:3]]
    assert lines[-1].startswith(f"mean return: {sum(recorded) / 3:.4f} recorded, ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda e: e.pop("calls"),
            "line 1: not a record of an episode: it has no 'calls'",
        ),
        (
            lambda e: e.update(env_id="no-such-v0"),
            "line 1: no-such-v0: unknown environment 'no-such-v0'.",
        ),
        (
            lambda e: e["env_options"].update(x=1),
            "line 1: search-qa-v0: the environment has no option 'x'",
        ),
        (lambda e: e["env_options"].update(top_n=0), "line 1: search-qa-v0: top_n (0) must be >="),
    ],
)
def test_an_unplayable_record_is_reported_in_one_line(searched, capsys, change, message):
    lines = lines_of(searched)
    change(lines[0])
    assert main([str(rewrite(searched, lines))]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert message in error
    assert error.count("\n") == 1


def test_files_and_rubrics_that_do_not_exist_are_one_line(searched, tmp_path, capsys):
    for words, message in (
        ([str(tmp_path / "none.jsonl")], "No such file"),
        ([str(searched), "--rubric", "f2"], "f2"),
    ):
        assert main(words) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
