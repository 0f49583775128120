"""Shaped runs: what advantages see, what is recorded, what is refused."""

from __future__ import annotations

import pytest

from envs.env import EnvOptions
from envs.rewards import register, registration
from rl.credit.shaping import Shaping
from rl.data.demonstrations import demonstrate
from rl.errors import UsageError
from rl.rollout.trajectory_files import read_trajectories
from rl.run.folder import read_jsonl
from rl.settings.parsing.command_line import parse
from rl.settings.train import PRESETS, TrainConfig
from rl.train import main
from tools.registry import Registry

WINDOW = 6


def episodes(out, step):
    return read_trajectories(out / "trajectories" / f"step-{step:06d}.jsonl.gz")


def steps(out):
    return [r for r in read_jsonl(out / "metrics.jsonl") if "reward" in r]


@pytest.fixture
def against(monkeypatch):
    """A shaping of this process that takes back twice what the environment paid."""
    fresh = Registry("reward", "turnwise.rewards", registration._NAME)
    monkeypatch.setattr(registration, "_registry", fresh)

    def against() -> Shaping:
        return Shaping("against", lambda members: [-2.0 * member.reward for member in members])

    register("shaping", "against", against)


def test_advantages_see_shaped_rewards(words, tmp_path, against):
    """A policy that is rewarded for wrong answers learns wrong answers."""
    rewards = {}
    for name, settings in {"plain": {}, "shaped": {"shaping": "against"}}.items():
        out = tmp_path / name
        settings |= {"steps": 12, "prompts": 8, "group_size": 6, "deterministic": "true"}
        assert main(words(out, **settings)) == 0
        rewards[name] = [record["reward"] for record in steps(out)]
    assert rewards["plain"][0] == rewards["shaped"][0], "the same start, the same episodes"
    assert rewards["plain"][-1] > rewards["plain"][0] + 0.1
    assert rewards["shaped"][-1] < rewards["shaped"][0] - 0.1


@pytest.mark.quick
def test_a_run_records_contributions_beside_rewards_that_stay_whole(words, tmp_path, capsys):
    out = tmp_path / "run"
    shaping = "0.5*overlong(max_length=3, cache=2) + kimi_length"
    assert main(words(out, steps=3, shaping=shaping, shaping_from=2, env__max_turns=2)) == 0
    first, *later = steps(out)
    assert not [key for key in first if "shap" in key]
    assert not any(t.shaping for t in episodes(out, 1))
    for record in later:
        played = episodes(out, record["step"])
        for t in played:
            t.check()
            assert list(t.shaping) == ["overlong", "kimi_length"]
            assert t.shaping["overlong"] == -0.5 * min(1.0, max(0.0, (t.num_sampled - 1) / 2))
            assert list(t.rewards) == ["copy"]
            assert t.reward == sum(turn.rewards["copy"] for turn in t.turns)
        mean = sum(t.reward for t in played) / len(played)
        assert record["reward"] == pytest.approx(mean)
        total = record["shaping/overlong"] + record["shaping/kimi_length"]
        assert record["reward_shaped"] == pytest.approx(mean + total)
        assert record["shaping/overlong"] < 0


def test_overlong_by_default_knows_the_context_window(words, tmp_path):
    """Answers of 3 tokens at most, in a window that is full after fewer: the penalty bites."""
    out = tmp_path / "run"
    assert main(words(out, steps=1, context_length=WINDOW, shaping="overlong")) == 0
    played = [t for t in episodes(out, 1) if t.turns]
    for t in played:
        room = WINDOW - t.segments[0].loss_mask.count(0)
        longest = min(room, 3 * t.env_options["max_turns"])
        cache = -(-longest // 5)
        expected = -min(1.0, max(0.0, (t.num_sampled - (longest - cache)) / cache))
        assert t.shaping["overlong"] == expected
    assert any(t.shaping["overlong"] == -1 and t.num_sampled < 3 for t in played)


def test_l1_reads_the_budget_that_stood_in_the_prompt(words, tmp_path):
    out = tmp_path / "run"
    settings = {"env__token_budget": "both:3-9", "shaping": "l1_exact(alpha=0.1), l1_max"}
    assert main(words(out, steps=1, context_length=0, **settings)) == 0
    played = episodes(out, 1)
    kinds = set()
    for t in played:
        scores = t.turns[-1].scores
        kinds.add(scores["budget_is_max"])
        if scores["budget_is_max"]:
            within = 0.0003 * (scores["token_budget"] - t.num_sampled) + 0.5
            expected = {"l1_exact": 0.0, "l1_max": scores["right"] * (within - 1)}
        else:
            off = abs(scores["token_budget"] - t.num_sampled)
            expected = {"l1_exact": -0.1 * off, "l1_max": 0.0}
        assert t.shaping == pytest.approx(expected)
    assert kinds == {0.0, 1.0}


async def test_an_imperfect_author_reads_no_budget_and_the_conversation_holds_it():
    options = EnvOptions(max_turns=2, token_budget="exact:5-5")
    for said in await demonstrate("toy-copy-v0", options, {}, range(6), seed=0):
        first, second = said.exchanges
        assert first.observation.endswith("\nThink for 5 tokens.")
        assert {first.action, second.action} <= {"0", "1", "2"}


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"shaping": "kimi_lenght"}, "Did you mean 'kimi_length'?"),
        ({"shaping": "cosine"}, "needs the option 'max_length'"),
        ({"shaping": "l1_max"}, "l1_max needs prompts with a budget: give env.token_budget=max"),
        (
            {"shaping": "l1_max", "env.token_budget": "exact"},
            "l1_max needs prompts with a budget: give env.token_budget=max",
        ),
        ({"env.token_budget": "512"}, "env.token_budget ('512') must be exact, max or both"),
        ({"shaping_from": "0"}, "shaping_from (0) must be >= 1"),
        (
            {"shaping": "kimi_length", "reward_weight": "0", "curriculum.keep": "0.5"},
            "reward_weight (0) must be above 0 for curriculum.keep < 1",
        ),
    ],
)
def test_a_wrong_shaping_is_an_error_before_anything_runs(settings, says):
    words = [f"{key}={value}" for key, value in {"env": "search-qa", **settings}.items()]
    with pytest.raises(UsageError) as error:
        parse(TrainConfig, words, command="x", presets=PRESETS)
    assert says in str(error.value)


def test_a_list_in_a_run_file_is_a_sum(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('shaping = ["0.5*kimi_length", "overlong(max_length=64, cache=16)"]\n')
    config = parse(TrainConfig, [f"config={file}"], command="x", presets=PRESETS)
    assert config.shaping == "0.5*kimi_length,overlong(max_length=64, cache=16)"


def test_a_shaping_that_gives_nonsense_ends_the_run_in_one_line(
    words, tmp_path, monkeypatch, capsys
):
    fresh = Registry("reward", "turnwise.rewards", registration._NAME)
    monkeypatch.setattr(registration, "_registry", fresh)
    register("shaping", "odd", lambda: Shaping("odd", lambda members: []))
    assert main(words(tmp_path / "run", shaping="odd")) == 1
    assert "error: shaping 'odd' gave [] for 4 episodes" in capsys.readouterr().err
