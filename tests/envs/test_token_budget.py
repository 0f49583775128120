"""Token budgets: drawn by (split, index, seed), written into the prompt, kept in the scores."""

from __future__ import annotations

from collections import Counter

import pytest

import envs
from envs.play import gold_of, play
from envs.token_budget import (
    TokenBudget,
    budget_kinds,
    budget_of,
    draw_budget,
    scores_of,
    sentence_of,
    without_budget,
)


def test_the_prompt_says_it_as_l1_does():
    assert sentence_of(TokenBudget("exact", 512)) == "\nThink for 512 tokens."
    assert sentence_of(TokenBudget("max", 1024)) == "\nThink for maximum 1024 tokens."
    assert sentence_of(None) == ""


@pytest.mark.parametrize("budget", [None, TokenBudget("exact", 100), TokenBudget("max", 4000)])
def test_a_budget_goes_through_the_scores_and_out_of_the_prompt(budget):
    assert budget_of({"em": 1.0, **scores_of(budget)}) == budget
    asked = "Who?\nThink for 3 tokens. Then say it."
    assert without_budget(asked + sentence_of(budget)) == asked


def test_a_budget_is_a_function_of_split_seed_and_task():
    def draw(split="train", seed=0, index=0):
        return draw_budget("exact", split, seed, index)

    assert draw() == draw()
    assert len({draw(), draw(split="test"), draw(seed=1), draw(index=1)}) == 4
    assert draw_budget("", "train", 0, 0) is None


def test_budgets_are_uniform_in_their_range_and_both_kinds_are_equally_likely():
    drawn = [draw_budget("both:3-5", "train", 0, index) for index in range(6000)]
    counts = Counter(drawn)
    assert len(counts) == 6
    for budget, count in counts.items():
        assert budget is not None and 3 <= budget.tokens <= 5
        assert count == pytest.approx(1000, abs=120), "over four standard deviations"
    l1 = [draw_budget("max", "train", 0, index) for index in range(4000)]
    assert {b.kind for b in l1 if b} == {"max"}
    tokens = [b.tokens for b in l1 if b]
    assert 100 <= min(tokens) < 110 and 3990 < max(tokens) <= 4000
    assert sum(tokens) / 4000 == pytest.approx(2050, abs=72)


def test_kinds():
    assert [budget_kinds(rule) for rule in ("", "exact", "max:1-2", "both")] == [
        *((), ("exact",), ("max",), ("exact", "max"))
    ]


@pytest.mark.parametrize(
    "rule", ["512", "exact:", "max:5-4", "max:0-4", "exact:1-99999999999", "no"]
)
def test_a_wrong_rule_is_said(rule):
    with pytest.raises(ValueError, match=r"token_budget \('.*'\) must be exact, max or both"):
        envs.make("search-qa", token_budget=rule)


def test_an_episode_says_and_keeps_its_budget():
    env = envs.make("search-qa", token_budget="max:40-90")
    plain = envs.make("search-qa")
    for task in range(4):
        first, _ = env.reset(seed=0, options={"task": task})
        budget = draw_budget("max:40-90", "train", 0, task)
        assert budget is not None
        assert first == plain.reset(seed=0, options={"task": task})[0] + sentence_of(budget)
        info = env.step("<answer>").info
        assert budget_of(info["scores"]) == budget
        assert info["scores"]["em"] == 0.0
    assert "token_budget" not in plain.step("<answer>").info["scores"]
    plain.close()
    env.close()


@pytest.mark.parametrize("name", ["search-qa", "knights-knaves"])
def test_the_contract_holds_with_a_budget(name):
    env = envs.make(name, token_budget="both:40-90")
    envs.check_env(env)
    env.close()


def test_the_gold_policy_reads_no_budget():
    class Echo(envs.TextEnv[int, int]):
        def begin(self, task):
            return f"task {task}"

        def gold_policy(self):
            return lambda observation: observation

    env = Echo(envs.EnvOptions(token_budget="max"), range(3))
    first, _ = env.reset(seed=0, options={"task": 2})
    assert "maximum" in first
    assert gold_of(env)(first) == "task 2"


def test_gold_plays_on_a_copy_in_mid_episode_and_the_budget_goes_along():
    env = envs.make("search-qa", token_budget="exact", hops="2")
    env.reset(seed=3, options={"task": 1})
    env.step("<think> </think> <search> sport </search>")
    twin = env.fork()
    ends = [one.step("<answer>").info["scores"] for one in (env, twin)]
    assert ends[0] == ends[1] and "token_budget" in ends[0]
    assert play(env, gold_of(env), task=1).reward == 1.0
    env.close()
    twin.close()
