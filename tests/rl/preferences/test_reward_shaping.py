"""A reward model as a reward: what it reads, and a run that is trained on it alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from transformers import AutoTokenizer

from agents.completion import Completion, FinishReason
from agents.renderer import Renderer
from agents.segment import Segment
from rl.credit.shaping import Member, make_shapings
from rl.errors import UsageError
from rl.learner.checkpoint import save_checkpoint
from rl.learner.model import load_model
from rl.learner.settings import OptimizerConfig
from rl.preferences.reward_model import RewardModel
from rl.preferences.updater import PreferenceUpdater
from rl.rollout.trajectory import Trajectory, Turn
from rl.run.folder import read_jsonl
from rl.settings.parsing.command_line import parse
from rl.settings.train import PRESETS, TrainConfig
from rl.train import main


@pytest.fixture(scope="module")
def renderer(toy_model):
    return Renderer(AutoTokenizer.from_pretrained(toy_model))


@pytest.fixture(scope="module")
def judge(toy_model, renderer, tmp_path_factory):
    """A reward model that prefers "2" to everything, whatever was shown."""
    from rl.data.comparisons import Comparison, Pair
    from rl.data.conversations import Conversation, Exchange

    rewarder = RewardModel.from_causal(load_model(toy_model))
    learner = PreferenceUpdater(rewarder, OptimizerConfig(lr=3e-3))
    prefers = [
        Comparison(
            tuple(Conversation((Exchange(shown, said),)) for said in "201"),
            (Pair(0, 1), Pair(0, 2)),
        ).tokenized(renderer)
        for shown in "012"
    ]
    for _ in range(60):
        results = learner.update(prefers)
    assert results["accuracy"] == 1
    folder = tmp_path_factory.mktemp("judge") / "model"
    save_checkpoint(folder, rewarder.model, AutoTokenizer.from_pretrained(toy_model))
    return folder


def episode(renderer, shown, said, action=None):
    segment = Segment()
    segment.append_context(renderer.start([{"role": "user", "content": shown}]), 0)
    tokens = (*renderer.splice(said), renderer.end_token_ids[0])
    segment.append_completion(
        Completion(tokens, (-1.0,) * len(tokens), (0,) * len(tokens), FinishReason.STOP_TOKEN), 0
    )
    turn = Turn(said if action is None else action, "", "stop_token", len(tokens))
    return Trajectory("x", {}, 0, 0, 0, [segment], [turn], terminated=True)


def member(trajectory):
    return Member(trajectory.num_sampled, False, 0.0, episode=trajectory)


def contributions(judge, *episodes):
    [weighted] = make_shapings(f"2*reward_model(path={str(judge)!r}, device='cpu')")
    return weighted.contributions([member(e) for e in episodes])


def test_it_reads_an_episodes_tokens_and_takes_a_weight(judge, renderer):
    played = [
        episode(renderer, "0", "2"),
        episode(renderer, "0", "01"),
        episode(renderer, "1", "0"),
    ]
    given = contributions(judge, *played)
    with torch.no_grad():
        alone = [RewardModel.load(judge).score([e.segments[0]]).item() for e in played]
    assert given == pytest.approx([2 * reward for reward in alone], abs=1e-5)
    assert given[0] > max(given[1:]) + 1
    # What comes after the last words changes nothing, and of a fork the last context counts.
    played[0].segments[0].append_context([5, 6], 1)
    played[1].segments.append(played[2].segments[0])
    played[1].turns = played[2].turns
    assert contributions(judge, *played[:2]) == pytest.approx([given[0], given[2]], abs=1e-5)


def test_it_scores_the_same_after_its_model_left_the_device(judge, renderer):
    [weighted] = make_shapings(f"reward_model(path={str(judge)!r}, device='cpu')")
    model = weighted.shaping.model
    assert (model.path, model.classifier, model.device) == (str(judge), True, "cpu")
    members = [member(episode(renderer, "0", said)) for said in ("2", "01")]
    model.offload()  # nothing is loaded yet
    first = weighted.contributions(members)
    model.offload()
    assert weighted.contributions(members) == first


def test_an_episode_without_an_action_has_reward_zero(judge, renderer):
    silent = episode(renderer, "0", "2")
    silent.segments[0].loss_mask = [0] * len(silent.segments[0])
    given = contributions(judge, silent, episode(renderer, "0", "2"))
    assert given[0] == 0 != given[1]


def test_unreadable_episodes_are_refused(judge, renderer):
    with pytest.raises(ValueError, match="reads '2' where the policy said 'hello'"):
        contributions(judge, episode(renderer, "0", "2", action="hello"))
    two = episode(renderer, "0", "2")
    two.segments.append(Segment([1], [0], [0.0], [-1], [0], role="other"))
    with pytest.raises(ValueError, match="episodes of one role, not of , other"):
        contributions(judge, two)
    [weighted] = make_shapings(f"reward_model(path={str(judge)!r})")
    with pytest.raises(ValueError, match="reads episodes, but this member has none"):
        weighted.contributions([Member(3, True, 1.0)])


def test_a_run_on_a_reward_model_alone_follows_it_and_shows_that_it_is_hacked(
    words, judge, tmp_path, capsys
):
    out = tmp_path / "run"
    settings = {"steps": 20, "prompts": 8, "group_size": 6, "deterministic": "true"}
    settings |= {"shaping": f"reward_model(path={str(judge)!r})", "reward_weight": 0}
    assert main(words(out, **settings)) == 0
    records = [r for r in read_jsonl(out / "metrics.jsonl") if "reward" in r]
    first, last = records[0], records[-1]
    assert last["shaping/reward_model"] > first["shaping/reward_model"] + 0.3
    assert last["reward_shaped"] == pytest.approx(last["shaping/reward_model"]), "and nothing else"
    # It says "2" whatever is shown: the environment's own reward falls to that of chance.
    assert last["reward"] < first["reward"]
    assert last["reward"] == pytest.approx(1 / 3, abs=0.17)
    agreements = [r["agreement/reward_model/pairs"] for r in records[:3]]
    assert all(0 <= a <= 1 for a in agreements)
    assert all(-1 <= r["agreement/reward_model/ranks"] <= 1 for r in records[:3])
    assert all("time/learner/reward" in r for r in records)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"reward_weight": "0"}, "reward_weight (0) leaves nothing to train on: give shaping=..."),
        ({"reward_weight": "-1"}, "reward_weight (-1.0) must be >= 0"),
        (
            {"reward_weight": "0", "shaping": "kimi_length", "curriculum.max_draws": "2"},
            "reward_weight (0) must be above 0 for curriculum.max_draws > 1",
        ),
        ({"shaping": "reward_model"}, "needs the option 'path'"),
        (
            {"reward_weight": "0.5", "algo": "vineppo"},
            "reward_weight (0.5) must be 1 with algo.advantage=vine",
        ),
        ({"shaping": "reward_model(path='/')"}, "path (/) has no config.json"),
    ],
)
def test_mistakes_are_reported_before_anything_runs(settings, says):
    words = [f"{key}={value}" for key, value in {"env": "search-qa", **settings}.items()]
    with pytest.raises(UsageError) as error:
        parse(TrainConfig, words, command="x", presets=PRESETS)
    assert says in str(error.value)


def test_another_model_ends_the_run_in_one_line(words, toy_model, tmp_path, capsys):
    settings = {"shaping": f"reward_model(path={str(toy_model)!r})"}
    assert main(words(tmp_path / "run", **settings)) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: shaping (reward_model(path=")
    assert "holds a Qwen3ForCausalLM: give a folder that python -m rl.reward_model saved" in error
    assert not (tmp_path / "run").exists(), "before anything was played"


def test_naming_a_reward_model_loads_no_torch(judge):
    program = (
        "import sys; from rl.credit.shaping import make_shapings; "
        f"make_shapings({f'reward_model(path={str(judge)!r})'!r}); print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
