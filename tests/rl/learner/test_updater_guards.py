"""What the learner refuses: losses that are not finite, and updates without a token."""

import copy
from dataclasses import replace

import pytest
import torch

import rl.credit.steps
from rl.credit.algorithms import ALGORITHMS
from rl.learner.seam import BrokenWeights, NonFiniteLoss
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.rollout.trajectory import TrajectoryGroup

GRPO = ALGORITHMS["grpo"]
FREE = OptimizerConfig(lr=1e-3, max_grad_norm=1e9)


def test_a_loss_that_is_not_finite_stops_before_the_step(make_model, groups):
    model = make_model()
    learner = Updater(model, GRPO, FREE)
    with torch.no_grad():
        model.model.norm.weight[3] = float("inf")
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(NonFiniteLoss, match="optimizer step 1 has loss nan"):
        learner.update(groups)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])
    assert learner.optimizer.num_steps == 0
    assert all(p.grad is None for p in model.parameters())


def test_a_gradient_that_is_not_finite_stops_before_the_step(make_model, groups):
    learner = Updater(make_model(), GRPO, FREE)
    learner.model.parameters()[0].register_hook(lambda grad: grad * float("inf"))
    with pytest.raises(NonFiniteLoss, match=r"has loss -?\d.* and gradient norm nan"):
        learner.update(groups)
    assert learner.optimizer.num_steps == 0


def test_unused_weights_that_break_stop_the_update_too(make_model, groups, make_group):
    """A token that only an episode with advantage 0 reads has an embedding of NaN."""
    constant = make_group([[(3, 6, 1.0)], [(3, 2, 1.0)]], seed=5)
    read = {t for g in groups for e in g.trajectories for t in e.segments[0].token_ids}
    prompt = constant.trajectories[0].segments[0].token_ids
    prompt[0] = (set(range(1, 23)) - read).pop()
    model = make_model()
    learner = Updater(model, GRPO, FREE)
    with torch.no_grad():
        model.model.embed_tokens.weight[prompt[0]] = float("nan")
    with pytest.raises(BrokenWeights, match="gave weights that are not finite"):
        learner.update([*groups, constant])


def states(learner):
    """Copies of all that a learner's next update depends on."""
    return copy.deepcopy((learner.model.model.state_dict(), learner.state_dict()))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("updates_before", [0, 2])
@pytest.mark.parametrize("name", ["grpo", "ppo"])
def test_an_update_of_several_steps_happens_completely_or_not_at_all(
    make_model, groups, monkeypatch, dtype, updates_before, name
):
    """The loss of its third optimizer step is nan: the two before it are undone."""
    row = replace(ALGORITHMS[name], epochs=2, minibatches=2)
    failing, sound = (Updater(make_model(dtype=dtype), row, FREE).seeded(5) for _ in range(2))
    for learner in (failing, sound):
        for _ in range(updates_before):
            learner.update(groups)
    objective = rl.credit.steps.policy_objective
    steps = failing.optimizer.num_steps

    def poisoned(*args, **kwargs):
        terms = objective(*args, **kwargs)
        broken = failing.optimizer.num_steps == steps + 2
        return replace(terms, loss=terms.loss * float("nan")) if broken else terms

    with monkeypatch.context() as patch:
        patch.setattr(rl.credit.steps, "policy_objective", poisoned)
        with pytest.raises(NonFiniteLoss, match=rf"optimizer step {steps + 3} has loss nan"):
            failing.update(groups)
    torch.testing.assert_close(states(failing), states(sound), rtol=0, atol=0)
    assert all(p.grad is None for p in failing.model.parameters())
    assert failing.update(groups) == sound.update(groups)
    torch.testing.assert_close(states(failing), states(sound), rtol=0, atol=0)


@pytest.mark.parametrize(("epochs", "undone"), [(1, False), (2, True)])
def test_broken_weights_are_detected_at_once(make_model, groups, monkeypatch, epochs, undone):
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    learner = Updater(model, replace(GRPO, epochs=epochs), FREE)
    monkeypatch.setattr(type(learner.optimizer), "_schedule", float("inf"))
    with pytest.raises(BrokenWeights, match=r"optimizer step 1 gave weights that are not finite"):
        learner.update(groups)
    assert learner.num_updates == 0
    assert undone == all(torch.equal(w, before[name]) for name, w in model.state_dict().items())


def test_a_step_without_a_trained_episode_has_a_gradient_of_zero(make_model, groups):
    learner = Updater(make_model(), GRPO, FREE)
    learner.update(groups)
    state = learner.optimizer.state_dict()["adamw"]["state"]
    before = [moments["exp_avg"].clone() for moments in state.values()]
    for group in groups:
        for trajectory in group.trajectories:
            trajectory.shaping = {"rest": 1 - trajectory.reward}
    assert learner.update(groups)["grad_norm"] == 0
    after = [moments["exp_avg"] for moments in state.values()]
    for old, new in zip(before, after, strict=True):
        torch.testing.assert_close(new, 0.9 * old)


def test_nothing_to_train_is_skipped_and_counted(make_model, make_trajectory):
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    learner = Updater(model, GRPO, FREE)
    failed = TrajectoryGroup([make_trajectory([(2, 3, 1.0)], failure="sandbox died")])
    for count in (1, 2):
        metrics = learner.update([failed])
        assert metrics == {
            "num_tokens": 0.0,
            "failed_episodes": 1.0,
            "empty_episodes": 0.0,
            "masked_episodes": 0.0,
            "skipped_updates": float(count),
        }
    assert (learner.num_updates, learner.optimizer.num_steps) == (0, 0)
    for name, weight in model.state_dict().items():
        assert torch.equal(weight, before[name])


@pytest.mark.parametrize("bound", [0, -3])
def test_a_micro_batch_holds_at_least_a_token(make_model, bound):
    with pytest.raises(ValueError, match=rf"max_tokens_per_micro_batch \({bound}\) must be >= 1"):
        Updater(make_model(), GRPO, FREE, max_tokens_per_micro_batch=bound)
