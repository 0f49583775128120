"""``rubric=`` in search-qa: other rewards for the same episodes."""

from __future__ import annotations

import pytest

import envs
from envs.play import play
from rl.errors import UsageError
from rl.settings.parsing.command_line import parse
from rl.settings.train import PRESETS, TrainConfig

TURN = "<think> t </think> <search> sport of Bako </search> and an ignored rest"


def test_a_rubric_replaces_the_reward_and_leaves_the_scores():
    plain = envs.make("search-qa")
    rubric = envs.make("search-qa", rubric="f1 + 0.5*research_format + repetition")
    with_gold = [play(env, env.gold_policy(), task=3).steps[-1] for env in (plain, rubric)]
    assert with_gold[0].info["scores"] == with_gold[1].info["scores"]
    assert with_gold[0].info["rewards"] == {"answer": 1.0, "format": 0.0}
    rewards = with_gold[1].info["rewards"]
    assert list(rewards) == ["f1", "research_format", "repetition"]
    assert with_gold[1].reward == sum(rewards.values())
    assert rewards["f1"] == 1.0 and rewards["research_format"] == 0.5
    plain.close()
    rubric.close()


def test_the_contract_holds_with_a_rubric():
    env = envs.make("search-qa", rubric="sequential(research_format, f1 + 0.1*em)")
    assert env.reward_range == (0.0, 1.1)
    assert env.reward_floor == 0.0
    assert set(envs.check_env(env).__dataclass_fields__) >= {"env_id"}
    env.close()
    gated = envs.make("search-qa", rubric="gate(f1)", max_turns=6)
    envs.check_env(gated)
    gated.close()


def test_what_was_read_is_kept_apart_from_what_was_written():
    env = envs.make("search-qa", rubric="repetition(ngram=1)")
    env.reset(seed=0)
    read = env.step(TURN).observation
    env.step(" <answer> none")
    said = TURN.removesuffix(" and an ignored rest") + " <answer> none"
    assert env.state.written == said
    assert env.state.text == said.replace(" <answer>", f"{read} <answer>")
    env.close()


@pytest.mark.parametrize("reason", ["length", "context_full"])
def test_a_text_that_ran_into_a_limit_is_not_complete(reason):
    env = envs.make("search-qa", rubric="research_format")
    right = "<think> t </think> <answer> \\boxed{chess} </answer>"
    for finish_reason, reward in [("stop", 1.0), (reason, 0.0)]:
        env.reset(seed=0)
        assert env.step(envs.Action(right, finish_reason)).reward == reward
    env.close()


def test_a_wrong_rubric_is_said_before_anything_runs():
    with pytest.raises(ValueError, match=r"rubric \(f1 \+\) must be a sum such as"):
        envs.make("search-qa", rubric="f1 +")
    words = ["env=search-qa", "env.rubric=f1 + 0.1*resarch_format"]
    with pytest.raises(UsageError, match="Did you mean 'research_format'"):
        parse(TrainConfig, words, command="x", presets=PRESETS)
    config = parse(TrainConfig, ["env=search-qa", "env.rubric=f1"], command="x", presets=PRESETS)
    assert config.env.options.rubric == "f1"
