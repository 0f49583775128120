"""``llm``, a command-line agent, is trained through Anthropic's API.

It needs ``pip install llm llm-anthropic``, and no network besides the endpoint on this machine.
"""

from __future__ import annotations

import json
from collections import Counter
from statistics import fmean

import pytest

from agents.capture import CapturedEpisode
from rl.rollout.trajectory_files import read_trajectories
from rl.runtime.runtime import TRAIN
from rl.train import main

pytest.importorskip("llm_anthropic", reason="llm is not installed: pip install llm llm-anthropic")

PROGRAM = '''
import random

from benchmarks.learning.llm_program import COLOURS, demonstrate as act, make_task, play


def tasks(split):
    """Tasks of one file."""
    rngs = (random.Random(f"{split} {i}") for i in range(20_000))
    return [task for rng in rngs if len((task := make_task(rng))["files"]) == 1]


def demonstrate(task, seed):
    """Two of three answers are right."""
    messages = act(task, seed)
    wrong = random.Random(seed).choice([task["colour"], task["colour"], *COLOURS[:1]])
    return [*messages[:-1], {"role": "assistant", "content": wrong}]
'''
STEPS = 10


@pytest.fixture
def answers(monkeypatch):
    """Every answer of a run: the episode's session, its request and what was sampled."""
    log = []
    answer = CapturedEpisode.answer

    async def logged(self, request):
        answered = await answer(self, request)
        log.append((self.session, request, answered))
        return answered

    monkeypatch.setattr(CapturedEpisode, "answer", logged)
    return log


def trained(trajectory):
    """The length of the prompt and the trained tokens of each turn."""
    found = []
    for number in range(len(trajectory.turns)):
        for segment in trajectory.segments:
            rows = zip(segment.turn_ids, segment.loss_mask, strict=True)
            places = [place for place, row in enumerate(rows) if row == (number, 1)]
            if places:
                assert places == [*range(places[0], places[-1] + 1)]
                found.append((places[0], tuple(segment.token_ids[places[0] : places[-1] + 1])))
    return found


def test_it_learns_and_trains_exactly_what_was_sampled(tmp_path, answers, without_charts):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    own = {"loop": "play", "tasks": "tasks", "demonstrations": "demonstrate"}
    run = tmp_path / "run"
    words = [f"env.{key}={program}:{name}" for key, name in own.items()]
    words += ["env=agent", "env.max_turns=4", "env.concurrency=8", f"steps={STEPS}", "prompts=4"]
    words += ["tiny.steps=150", "tiny.demonstrations=1000", "optimizer.lr=1e-3"]
    words += ["sampling.max_tokens=40", "eval.every=100", "eval.tasks=4", "eval.test_tasks=0"]
    assert main([*words, f"out={run}"]) == 0

    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rewards = [row["reward"] for row in rows if "reward" in row]
    assert len(rewards) == STEPS
    assert all(row["failures"] == 0 for row in rows if "reward" in row)
    assert fmean(rewards[3:]) > fmean(rewards[:3]) + 0.1

    sampled, kept = Counter(), Counter()
    for session, _, answer in answers:
        _, split, step, *_ = session.split("/")
        if int(split) == TRAIN:
            sampled[step, answer.num_prompt_tokens, tuple(answer.completion.token_ids)] += 1
    conversations = []
    for step in range(1, STEPS + 1):
        for trajectory in read_trajectories(run / "trajectories" / f"step-{step:06d}.jsonl.gz"):
            kept.update((str(step), *turn) for turn in trained(trajectory))
            conversations.append(len(trajectory.segments))
    assert kept == sampled
    assert set(conversations) == {1}
    assert max(len(request.messages) for _, request, _ in answers) >= 3
