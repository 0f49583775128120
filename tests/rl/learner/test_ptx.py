"""Texts that are imitated beside the episodes of an update: PPO-ptx."""

from dataclasses import replace

import pytest
import torch

from agents.torch_thread import TorchThread
from rl.credit.algorithms import ALGORITHMS
from rl.learner.local import LocalLearner
from rl.learner.seam import Experience, Host, LearnerSpec, TrainingSpec
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.settings.lora import NO_LORA

GRPO = ALGORITHMS["grpo"]
FREE = OptimizerConfig(lr=1e-3, max_grad_norm=1e9)


def gradient_of(model, row, groups, texts=()):
    """What an update hands to the optimizer, as one vector."""
    learner, found = Updater(model, row, FREE), []

    def keep():
        found.append(torch.cat([p.grad.flatten() for p in learner.model.parameters()]))
        learner.optimizer.zero_grad()

    learner.optimizer.step = keep
    learner.update(groups, texts)
    return found[0]


def mean_cross_entropy(model, texts):
    losses = []
    for text in texts:
        log_p = model(input_ids=torch.tensor([text.token_ids])).logits[0].log_softmax(-1)
        said = [t for t, mask in enumerate(text.loss_mask) if mask]
        losses += [-log_p[t - 1, text.token_ids[t]] for t in said]
    return torch.stack(losses).mean()


def test_the_gradient_of_the_texts_is_added_by_its_weight(make_model, groups):
    texts = [t.segments[0] for t in groups[1].trajectories]
    plain = gradient_of(make_model(dtype=torch.float64), GRPO, groups)
    mixed = gradient_of(make_model(dtype=torch.float64), replace(GRPO, ptx_coef=0.7), groups, texts)
    model = make_model(dtype=torch.float64)
    loss = mean_cross_entropy(model, texts)
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())])
    torch.testing.assert_close(mixed - plain, 0.7 * expected, atol=1e-6, rtol=1e-4)


def test_the_loss_of_texts_is_reported(make_model, groups):
    texts = [t.segments[0] for group in groups for t in group.trajectories]
    loss = mean_cross_entropy(make_model(), texts).item()
    results = Updater(make_model(), replace(GRPO, ptx_coef=0.7), FREE).update(groups, texts)
    assert results["ptx_loss"] == pytest.approx(loss, rel=1e-5)
    without = Updater(make_model(), GRPO, FREE).update(groups)
    # InstructGPT's objective: the weighted log-likelihood of the texts beside the reward.
    assert results["loss"] - without["loss"] == pytest.approx(0.7 * loss, rel=1e-5)
    assert results["num_tokens"] == without["num_tokens"]
    assert "ptx_loss" not in without


def test_each_optimizer_step_takes_its_share(make_model, groups):
    texts = [t.segments[0] for group in groups for t in group.trajectories]
    row = replace(GRPO, ptx_coef=1.0, minibatches=2)
    learner, seen = Updater(make_model(), row, FREE), []
    imitation = learner._imitation
    learner._imitation = lambda b, coef: seen.append(len(b.rewards)) or imitation(b, coef)
    learner.update(groups, texts)
    assert seen == [3, 2]


async def test_an_update_without_episodes_imitates_its_texts_alone(tmp_path, make_model, groups):
    """As in rl.sft: whatever the weight of texts beside episodes, and once for each version."""
    texts = [t.segments[0] for t in groups[1].trajectories]
    make_model().save_pretrained(tmp_path)
    loss = mean_cross_entropy(make_model(), texts)
    thread = TorchThread()
    training = TrainingSpec(replace(GRPO, ptx_coef=0.7), FREE, 1.0, 4096)
    spec = LearnerSpec(str(tmp_path), None, "cpu", "float32", NO_LORA, 0, training)
    learner = await thread.do(LocalLearner, spec, Host(thread, int))
    try:
        metrics = await learner.update(Experience((), texts), 1)
        assert metrics["loss"] == pytest.approx(loss.item(), rel=1e-5)
        weights = {name: x.clone() for name, x in learner.model.state_dict().items()}
        assert await learner.update(Experience((), texts), 1) == metrics
        assert all(torch.equal(weights[n], x) for n, x in learner.model.state_dict().items())
        assert (await learner.update(Experience((), texts), 2))["loss"] < metrics["loss"]
        assert await learner.token_record(2) is None
    finally:
        await learner.close()
        await thread.close()
