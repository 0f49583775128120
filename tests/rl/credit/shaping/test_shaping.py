"""Shapings by name: made of a word, checked, and recorded with the episodes of a step."""

from __future__ import annotations

import json

import pytest

from agents.segment import Segment
from envs.rewards import names, register, registration
from envs.token_budget import TokenBudget
from rl.credit.shaping import Member, Shaping, Weighted, make_shapings
from rl.credit.shaping.record import shape
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn
from rl.run.metrics.episodes import rollout_metrics
from tools.registry import Registry, UnknownNameError

ALL = "kimi_length, overlong(max_length=8, cache=4), l1_exact, l1_max, cosine(max_length=10)"


def member(num_tokens, right=True, budget=None):
    return Member(num_tokens, right, float(right), budget)


def contributions(text, members):
    [weighted] = make_shapings(text)
    return weighted.contributions(members)


def episode(num_tokens, reward, scores=None, failure=None):
    segment = Segment()
    segment.append_context([1, 2], 0)
    made = Trajectory("toy-v0", {}, 0, 0, 0, segments=[segment])
    if failure is not None:
        made.failure = failure
        return made
    segment.token_ids += [3] * num_tokens
    segment.loss_mask += [1] * num_tokens
    made.turns = [Turn("a", "", "stop", num_tokens, {"own": reward}, scores or {"right": reward})]
    made.terminated = True
    return made


def test_every_built_in_shaping_is_registered_and_made():
    lengths = ["cosine", "kimi_length", "l1_exact", "l1_max", "overlong"]
    assert names("shaping") == sorted([*lengths, "judge", "process_model", "reward_model"])
    assert [w.shaping.name for w in make_shapings(ALL)] == [
        *("kimi_length", "overlong", "l1_exact", "l1_max", "cosine")
    ]
    assert make_shapings("") == make_shapings("  ") == ()


def test_kimi_compares_siblings_and_takes_a_weight():
    group = [member(100), member(200, False), member(300), member(500, False)]
    assert contributions("kimi_length", group) == [0.5, 0.0, 0.0, -0.5]
    assert contributions("0.2*kimi_length", group) == pytest.approx([0.1, 0.0, 0.0, -0.1])


def test_rewards_that_replace_the_one_of_a_right_answer():
    """With the 1 of a right answer these are the papers' rewards."""
    exact, most = TokenBudget("exact", 1000), TokenBudget("max", 1000)
    both = [member(1500, True, exact), member(1200, False, exact), member(500, True, most)]
    assert contributions("l1_exact", both) == pytest.approx([-0.15, -0.06, 0.0])
    assert contributions("l1_max", both) == pytest.approx([0.0, 0.0, 0.65 - 1])
    wrong = [member(500, False, most)]
    assert contributions("l1_max", wrong) == [0.0]
    assert contributions("l1_max(rule='code')", [*wrong, both[2]]) == pytest.approx([0.575, 0.575])
    lengths = [member(500), member(2000), member(500, False)]
    assert contributions("cosine(max_length=1000)", lengths) == pytest.approx(
        [0.75 - 1, 0.5 - 1, -0.75]
    )
    script = "cosine(max_length=1000, wrong_start=0.0, wrong_end=-0.5, clamp=False)"
    assert contributions(script, lengths) == pytest.approx([0.75 - 1, 1 - 1, -0.25])


def test_overlong_needs_its_bounds():
    text = "overlong(max_length=20480, cache=4096)"
    assert contributions(text, [member(18432), member(1, False)]) == [-0.5, 0.0]


def test_overlong_prefers_its_own_length_and_shrinks_its_cache():
    def cost(text, num_tokens, limit):
        return contributions(text, [Member(num_tokens, True, 1.0, limit=limit)])

    assert cost("overlong(max_length=100, cache=20)", 90, 1000) == [-0.5]
    # No room for such a cache in 50 tokens: the cost grows over all of them.
    assert cost("overlong(cache=100)", 0, 50) == [0.0]
    assert cost("overlong(cache=100)", 25, 50) == [-0.5]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cosine", "needs the option 'max_length'"),
        ("overlong(max_length=4, cache=5)", r"cache \(5\) must be from 0 to max_length \(4\)"),
        ("overlong(max_len=4, cache=5)", "Did you mean 'max_length'?"),
        ("cosine(max_length=0)", "must be >= 1"),
        ("l1_exact(alpha=-1.0)", "must be >= 0"),
        ("l1_max(rule='repo')", "must be one of paper, code"),
        ("kimi_length(l1_max)", "takes options, as name=value"),
        ("kimi_length + 2*kimi_length", "'kimi_length' occurs twice"),
        ("1e999*kimi_length", "must be finite"),
        ("f1", "'f1' is a rubric: it belongs in rubric=..., not in shaping=..."),
        ("kimi_length +", "must be a sum such as"),
    ],
)
def test_mistakes_are_reported_with_the_setting(text, says):
    with pytest.raises(ValueError, match=says) as error:
        make_shapings(text)
    assert str(error.value).startswith(f"shaping ({text})")


def test_an_unknown_name_gets_a_suggestion():
    with pytest.raises(UnknownNameError, match="Did you mean 'kimi_length'"):
        make_shapings("kimi_lenght")


def test_a_step_is_shaped_by_group_without_failed_episodes():
    groups = [
        TrajectoryGroup([episode(2, 1.0), episode(9, 0.0, failure="away"), episode(6, 1.0)]),
        TrajectoryGroup([episode(6, 0.0)]),
        TrajectoryGroup([episode(1, 0.0, failure="away")]),
    ]
    shapings = make_shapings("2*kimi_length + overlong(max_length=8, cache=4)")
    shape(shapings, groups, "right", 1.0)
    first, failed, last = groups[0].trajectories
    assert first.shaping == {"kimi_length": 1.0, "overlong": 0.0}
    assert last.shaping == {"kimi_length": -1.0, "overlong": -0.5}
    assert (first.reward, first.shaped_reward) == (1.0, 2.0)
    assert (last.reward, last.shaped_reward) == (1.0, -0.5)
    assert failed.shaping == groups[2].trajectories[0].shaping == {}
    assert groups[1].trajectories[0].shaping == {"kimi_length": 0.0, "overlong": -0.5}

    metrics = rollout_metrics(groups)
    assert metrics["reward"] == pytest.approx(2 / 3)
    assert metrics["reward_shaped"] == pytest.approx((2.0 - 0.5 - 0.5) / 3)
    assert metrics["shaping/kimi_length"] == 0.0
    assert metrics["shaping/overlong"] == pytest.approx(-1 / 3)

    record = json.loads(json.dumps(last.to_json()))
    assert Trajectory.from_json(record) == last
    del record["shaping"]
    assert Trajectory.from_json(record).shaping == {}, "a record of before has none"


def test_overlong_starts_at_the_end_of_the_context_window():
    """It read 2 tokens of a window of 12: 10 were left, of which the last fifth costs."""
    lengths = (5, 8, 9, 10)
    groups = [TrajectoryGroup([episode(length, 0.0) for length in lengths])]
    for limit, expected in ((0, [0, 0, -0.5, -1]), (1024, [0, 0, -0.5, -1]), (5, [-1] * 4)):
        shape(make_shapings("overlong"), groups, "right", 1.0, limit, context_length=12)
        assert [t.shaping["overlong"] for t in groups[0].trajectories] == expected
    shape(make_shapings("overlong"), groups, "right", 1.0, 1024)
    assert [t.shaping["overlong"] for t in groups[0].trajectories] == [0] * 4


def test_reward_weight_scales_the_environments_reward():
    groups = [TrajectoryGroup([episode(6, 1.0), episode(2, 0.5)])]
    shape(make_shapings("overlong(max_length=8, cache=4)"), groups, "right", 1.0, 0, 0.25)
    first, second = groups[0].trajectories
    assert (first.shaped_reward, second.shaped_reward) == (0.25 - 0.5, 0.125)
    assert (first.reward, second.reward) == (1.0, 0.5), "what it paid stays what it was"
    record = json.loads(json.dumps(first.to_json()))
    assert Trajectory.from_json(record) == first
    del record["reward_weight"]
    assert Trajectory.from_json(record).reward_weight == 1.0, "a record of before has none"


def test_a_shaping_that_compares_no_siblings_sees_a_whole_step_at_once():
    groups = [
        TrajectoryGroup([episode(1, 1.0), episode(2, 0.0)]),
        TrajectoryGroup([episode(3, 1.0)]),
    ]
    seen = []

    def count(members):
        seen.append([m.num_tokens for m in members])
        assert [len(m.episode.segments[0]) - 2 for m in members] == seen[-1]
        return [float(m.num_tokens) for m in members]

    together = Weighted(2.0, Shaping("count", count, by_group=False))
    shape((together, Weighted(1.0, Shaping("apart", count))), groups, "right", 1.0)
    assert seen == [[1, 2, 3], [1, 2], [3]]
    shaped = [t.shaping for group in groups for t in group.trajectories]
    assert [s["count"] for s in shaped] == [2.0, 4.0, 6.0]
    assert [s["apart"] for s in shaped] == [1.0, 2.0, 3.0]


def test_without_shaping_nothing_is_recorded():
    groups = [TrajectoryGroup([episode(2, 1.0)])]
    shape((), groups, "right", 1.0)
    assert groups[0].trajectories[0].shaping == {}
    assert not [name for name in rollout_metrics(groups) if "shap" in name]


@pytest.mark.parametrize(
    ("score", "best", "right"),
    [("right", 5.0, [True, False, False]), ("", 2.0, [False, True, False])],
)
def test_success_is_the_score_or_the_best_return(score, best, right):
    seen = []
    spy = Shaping("spy", lambda members: seen.extend(members) or [0.0] * len(members))
    members = [
        episode(1, 0.3, {"right": 1.0}),
        episode(1, 2.0 - 1e-9, {"right": 0.5}),
        episode(1, 1.5, {"other": 1.0}),
    ]
    [kimi] = make_shapings("kimi_length")
    shape([type(kimi)(1.0, spy)], [TrajectoryGroup(members)], score, best)
    assert [m.right for m in seen] == right
    assert [m.reward for m in seen] == [t.reward for t in members]


@pytest.mark.parametrize("given", [[], [1.0], [0.0, float("nan")], [0.0, float("inf")]])
def test_a_shaping_with_an_invalid_result_is_named(monkeypatch, given):
    fresh = Registry("reward", "turnwise.rewards", registration._NAME)
    monkeypatch.setattr(registration, "_registry", fresh)
    register("shaping", "odd", lambda: Shaping("odd", lambda members: given))
    register("shaping", "none", lambda: 3)
    with pytest.raises(ValueError, match=r"shaping 'odd' gave .* for 2 episodes"):
        contributions("odd", [member(1), member(2)])
    with pytest.raises(ValueError, match="its factory returned 3, not a Shaping"):
        make_shapings("none")
