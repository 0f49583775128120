"""Two roles of one episode, one policy: a conversation and a credit for each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import envs
from agents.completion import SamplingParams
from agents.scripted import ScriptedPolicy
from envs.replay import main as replay
from rl.credit.algorithms import ALGORITHMS
from rl.credit.assignment import assign_credit
from rl.credit.batch import Batch
from rl.data.demonstrations import demonstrate
from rl.rollout.collector import Collector
from rl.rollout.context import EpisodeContext, EpisodeLimits
from rl.rollout.trajectory import Trajectory
from rl.rollout.trajectory_files import write_trajectories
from rl.run.metrics.episodes import rollout_metrics

RULES = {"proposer": "Write a digit.", "solver": "Say the digit that follows."}


class ProposeEnv(envs.TextEnv[int, str]):
    """Twice in turn: one writes a digit, the other says which digit follows; each wants to win."""

    def __init__(self, options: envs.EnvOptions, services: Mapping[str, Any] | None = None):
        super().__init__(options, range(10), services)

    def begin(self, task: int) -> str:
        self.state = ""
        self._give_word("proposer")
        return f"Round {task}."

    def turn(self, action: envs.Action) -> envs.Reply:
        if self.role == "proposer":
            self.state = str(action)
            self._give_word("solver")
            return envs.go_on(f"What follows {action}?", {"wrote": 0.25})
        right = float(action == str((int(self.state) + 1) % 10))
        self._give_word("proposer")
        rewards = {"solver/right": right, "proposer/hard": 1.0 - right}
        return envs.go_on("It was right." if right else "It was wrong.", rewards)

    def demonstrator(self, rng: np.random.Generator):
        return lambda observation: "4" if observation.startswith(("Round", "It")) else "5"

    def _give_word(self, role: str) -> None:
        self.role, self.system_prompt = role, RULES[role]


envs.register("roles-propose-v0", ProposeEnv)
SAID = {0: ["3", "4", "8", "8"], 1: ["3", "5", "8", "8"]}
"""By member; the first solver is right once, the second never."""


@pytest.fixture
async def group(renderer):
    turns: dict[str, int] = {}

    def respond(session, prompt_ids):
        turns[session] = turns.get(session, -1) + 1
        text = SAID[int(session.split("/")[3])][turns[session]]
        return [*renderer.splice(text), renderer.end_token_ids[0]]

    collector = Collector(
        EpisodeContext(
            env_id="roles-propose-v0",
            options=envs.EnvOptions(max_turns=4),
            services={},
            policy=ScriptedPolicy(respond),
            renderer=renderer,
            sampling=SamplingParams(max_tokens=20),
            limits=EpisodeLimits(context_length=1000),
        ),
    )
    (made,) = await collector.collect([7], 2, (5,))
    return made


def test_each_role_reads_its_own_conversation(group, renderer):
    first = group.trajectories[0]
    proposer, solver = first.segments
    texts = [renderer.tokenizer.decode(segment.token_ids) for segment in first.segments]
    assert texts == [
        "<|system|>Write a digit.<|end|><|user|>Round 7.<|end|><|assistant|>3<|end|>"
        "<|user|>It was right.<|end|><|assistant|>8<|end|>",
        "<|system|>Say the digit that follows.<|end|><|user|>What follows 3?<|end|><|assistant|>4"
        "<|end|><|user|>What follows 8?<|end|><|assistant|>8<|end|>",
    ]
    assert (proposer.role, solver.role) == first.roles == ("proposer", "solver")
    assert [turn.role for turn in first.turns] == ["proposer", "solver"] * 2
    assert [sorted(set(segment.turn_ids)) for segment in first.segments] == [[0, 2], [1, 3]]
    first.check()
    assert Trajectory.from_json(json.loads(json.dumps(first.to_json()))) == first


def test_a_reward_goes_to_the_role_in_its_name_or_else_to_the_role_that_acted(group):
    first, second = group.trajectories
    assert first.rewards_of("solver") == [0.0, 1.0, 0.0, 0.0]
    assert first.rewards_of("proposer") == [0.25, 0.0, 0.25, 1.0]
    assert second.rewards_of("proposer") == [0.25, 1.0, 0.25, 1.0]
    assert sum(second.rewards_of("solver")) == 0.0
    assert first.reward == second.reward == 2.5
    assert not group.is_constant, "a game of constant sum still teaches each of its players"
    metrics = rollout_metrics([group])
    assert metrics["roles/proposer/reward"] == pytest.approx((1.5 + 2.5) / 2)
    assert metrics["roles/solver/reward"] == pytest.approx(0.5)


def test_each_role_is_compared_with_its_like(group):
    batch = Batch.from_groups([group])
    assert batch.rewards.tolist() == [1.5, 1.0, 2.5, 0.0]
    assert batch.group_ids.tolist() == [0, 1, 0, 1]
    # Two tokens a turn, the digit and the end: 4 of each role in each episode.
    assert batch.episode_ids.tolist() == [e for e in range(4) for _ in range(4)]
    credit = assign_credit(ALGORITHMS["dr-grpo"], batch)
    expected = [-0.5] * 4 + [0.5] * 4 + [0.5] * 4 + [-0.5] * 4
    assert credit.advantages.tolist() == pytest.approx(expected)


def test_what_another_turn_pays_is_earned_by_the_words_before_it(group):
    group.trajectories[0].shaping = {"extra": 1.0}
    batch = Batch.from_groups([group])
    paid = list(zip(batch.turn_ends.tolist(), batch.turn_rewards.tolist(), strict=True))
    assert paid[:2] == [(1, 0.25), (3, 2.25)], "2 of it in the solver's last turn"
    assert paid[2:4] == [(5, 1.0), (7, 1.0)]
    assert paid[4:6] == [(9, 1.25), (11, 1.25)]
    assert batch.rewards.tolist() == [2.5, 2.0, 2.5, 0.0]


def test_an_episodes_own_rewards_may_count_for_less(group):
    for trajectory in group.trajectories:
        trajectory.reward_weight = 0.5
    # Half of 2.5 is each episode's own return; each role of the first also earns the shaping.
    group.trajectories[0].shaping = {"extra": 1.0}
    batch = Batch.from_groups([group])
    assert batch.rewards.tolist() == [1.75, 1.5, 1.25, 0.0]
    assert batch.turn_rewards.tolist()[:2] == [0.125, 1.625]


def test_an_episode_of_roles_plays_again(group, tmp_path, capsys):
    path = tmp_path / "episodes.jsonl.gz"
    write_trajectories(path, [group])
    assert replay([str(path)]) == 0
    assert "2 as recorded, 0 not" in capsys.readouterr().out


async def test_demonstrations_are_a_conversation_for_each_role():
    options = envs.EnvOptions(max_turns=4)
    proposer, solver = await demonstrate("roles-propose-v0", options, {}, [7], seed=0)
    assert (proposer.system, solver.system) == tuple(RULES.values())
    assert [e.observation for e in proposer.exchanges] == ["Round 7.", "It was right."]
    assert [e.action for e in solver.exchanges] == ["5", "5"]


def test_copies_know_whose_turn_it_is():
    env = envs.make("roles-propose", max_turns=4)
    env.reset(seed=0, options={"task": 1})
    before = env.snapshot()
    env.step("3")
    twin = env.fork()
    assert (twin.role, twin.system_prompt) == ("solver", RULES["solver"])
    env.restore(before)
    assert (env.role, env.system_prompt) == ("proposer", RULES["proposer"])
    for one in (env, twin):
        one.close()


async def test_a_part_of_a_mixture_may_have_roles():
    env = envs.make("mix", of="roles-propose(max_turns=4)")
    await env.areset(seed=0, options={"task": 1})
    assert (env.role, env.system_prompt) == ("proposer", RULES["proposer"])
    await env.astep("3")
    assert (env.role, env.system_prompt) == ("solver", RULES["solver"])
    await env.aclose()
