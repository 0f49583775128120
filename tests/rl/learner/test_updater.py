"""The learner against direct implementations that score one row at a time with the model itself."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from rl.credit.algorithms import ALGORITHMS
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.rollout.trajectory import TrajectoryGroup

GRPO = ALGORITHMS["grpo"]
NUM_TOKENS = 33
"""Sampled tokens of the fixture ``groups``."""
OUTCOMES = [1.0, 0.0, 1.0, 1.0, 0.0]
FREE = OptimizerConfig(lr=1e-3, max_grad_norm=1e9)


def direct_scores(model, trajectory, temperature=1.0):
    """Log-probabilities and entropies of the sampled tokens, from the whole table of logits."""
    (segment,) = trajectory.segments
    logits = model(input_ids=torch.tensor([segment.token_ids])).logits[0] / temperature
    log_p = logits.log_softmax(-1)
    sampled = [t for t, mask in enumerate(segment.loss_mask) if mask]
    logprobs = torch.stack([log_p[t - 1, segment.token_ids[t]] for t in sampled])
    entropy = torch.stack([-(log_p[t - 1].exp() * log_p[t - 1]).sum() for t in sampled])
    return logprobs, entropy


def gradients_of(learner, run):
    """The gradient that ``run`` hands to the optimizer, and what ``run`` returned."""
    found = []

    def keep():
        found.append([p.grad.clone() for p in learner.model.parameters()])
        learner.optimizer.zero_grad()

    learner.optimizer.step = keep
    result = run()
    (gradients,) = found
    return gradients, result


def assert_gradients(got, expected, atol=1e-6):
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, atol=atol, rtol=1e-4)


def shape_to_one(groups):
    """Give every episode the shaped reward 1."""
    for group in groups:
        for trajectory in group.trajectories:
            trajectory.shaping = {"rest": 1 - trajectory.reward}


ADVANTAGES = {  # by hand, from the rewards [1, 0, .75] and [1, 0] of the fixture's two groups
    "unbiased": [0.800641, -1.120897, 0.320256, 0.707106, -0.707106],
    "none": [5 / 12, -7 / 12, 1 / 6, 0.5, -0.5],
}


def direct_loss(model, groups, row, temperature=1.0):
    members = [t for group in groups for t in group.trajectories]
    num_tokens = sum(t.num_sampled for t in members)
    total = 0.0
    for trajectory, advantage in zip(members, ADVANTAGES[row.advantage.std], strict=True):
        logprobs, entropy = direct_scores(model, trajectory, temperature)
        ratio = (logprobs - logprobs.detach()).exp()
        loss = (-advantage * ratio - row.entropy_coef * entropy).sum()
        divisor = {
            "token-mean": num_tokens,
            "seq-mean-token-mean": len(members) * len(logprobs),
            "seq-mean-token-sum-norm": len(members) * (row.max_tokens or 0),
        }[row.aggregation]
        total = total + loss / divisor
    return total


@pytest.mark.parametrize(
    "row",
    [
        GRPO,
        replace(ALGORITHMS["dr-grpo"], max_tokens=16),
        ALGORITHMS["dapo-loss"],
        replace(GRPO, entropy_coef=0.1),
    ],
    ids=["grpo", "dr-grpo", "dapo-loss", "entropy"],
)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_gradient_is_the_direct_one(make_model, groups, row, temperature):
    model = make_model(dtype=torch.float64)
    learner = Updater(model, row, FREE, temperature=temperature, max_tokens_per_micro_batch=24)
    got, metrics = gradients_of(learner, lambda: learner.update(groups))
    loss = direct_loss(model, groups, row, temperature)
    expected = torch.autograd.grad(loss, learner.model.parameters())
    assert_gradients(got, expected)
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-6)
    norm = torch.stack([g.norm() for g in expected]).norm().item()
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-4)


def test_one_turn_is_the_three_line_policy_gradient(make_model, make_group):
    model = make_model(dtype=torch.float64)
    group = make_group([[(3, 4, 1.0)], [(3, 4, 0.0)]])
    learner = Updater(model, GRPO.changed({"advantage.std": "none"}), FREE)
    got, _ = gradients_of(learner, lambda: learner.update([group]))
    good, bad = (direct_scores(model, t)[0].mean() for t in group.trajectories)
    loss = -(0.5 * good - 0.5 * bad) / 2
    assert_gradients(got, torch.autograd.grad(loss, learner.model.parameters()))


@pytest.mark.parametrize("max_tokens", [1, 13, 20, 10_000])
@pytest.mark.parametrize("name", list(ALGORITHMS))
def test_the_cut_into_micro_batches_changes_nothing(make_model, groups, name, max_tokens):
    # With the sampler's log-probabilities no ratio is 1, a sequence's neither.
    row = replace(ALGORITHMS[name], epochs=1, minibatches=1)
    if row.surrogate.name not in ("reinforce", "oreal"):
        row = replace(row, old_logprobs="sampling")
    finished = [trajectory for group in groups for trajectory in group.finished]
    for trajectory, outcome in zip(finished, OUTCOMES, strict=True):
        trajectory.outcome = outcome
    results = []
    for bound in (10_000, max_tokens):
        learner = Updater(
            make_model(dtype=torch.float64), row, FREE, max_tokens_per_micro_batch=bound
        )
        results.append(gradients_of(learner, lambda learner=learner: learner.update(groups)))
    (expected, metrics), (got, cut_metrics) = results
    assert_gradients(got, expected, atol=1e-7)
    assert cut_metrics == pytest.approx(metrics, abs=1e-6)


def test_a_correction_uses_the_recorded_log_probabilities(make_model, groups):
    """Every ratio is e^0.3 then: the gradient is that much longer, or bounded."""
    model = make_model(dtype=torch.float64)
    for trajectory in [t for group in groups for t in group.trajectories]:
        (segment,) = trajectory.segments
        recorded = iter((direct_scores(model, trajectory)[0] - 0.3).tolist())
        segment.sampling_logprobs[:] = [next(recorded) if m else 0.0 for m in segment.loss_mask]
    results = {}
    for kind, high in (("none", 2.0), ("tis", 2.0), ("tis", 1.1)):
        row = GRPO.changed({"correction.kind": kind, "correction.high": high})
        learner = Updater(make_model(dtype=torch.float64), row, FREE)
        results[kind, high] = gradients_of(learner, lambda learner=learner: learner.update(groups))
    plain, _ = results["none", 2.0]
    for high, weight in ((2.0, math.exp(0.3)), (1.1, 1.1)):
        got, metrics = results["tis", high]
        assert_gradients(got, [weight * g for g in plain], atol=1e-7)
        assert metrics["correction/ratio_mean"] == pytest.approx(math.exp(0.3))
        assert metrics["correction/effective_samples"] == pytest.approx(1.0)


def test_the_mean_of_prompts(make_model, groups):
    """Each group's token mean counts the same, whatever the group's tokens are."""
    row = replace(GRPO, aggregation="prompt-mean")
    learner = Updater(make_model(dtype=torch.float64), row, FREE)
    got, _ = gradients_of(learner, lambda: learner.update(groups))
    model, loss, advantages = make_model(dtype=torch.float64), 0.0, iter(ADVANTAGES["unbiased"])
    for group in groups:
        count = sum(t.num_sampled for t in group.trajectories)
        for trajectory in group.trajectories:
            scores = direct_scores(model, trajectory)[0]
            loss = loss - next(advantages) * scores.sum() / count / len(groups)
    expected = torch.autograd.grad(loss, model.parameters())
    assert_gradients(got, expected)


@pytest.mark.parametrize("place", ["loss", "reward"])
def test_the_weight_of_the_divergence_is_adapted_and_saved(make_model, groups, place):
    """Five episodes, a horizon of 10: without any divergence a tenth less after an update."""
    name = "grpo" if place == "loss" else "ppo"
    chosen = {"kl.coef": 0.5, "kl.place": place, "kl.target": 1.0, "kl.horizon": 10}
    row = ALGORITHMS[name].changed(chosen)
    learner = Updater(make_model(dtype=torch.float64), row, FREE)
    metrics = learner.update(groups)
    assert (metrics["kl_coef"], metrics["kl"]) == (0.5, pytest.approx(0, abs=1e-12))
    assert learner.algorithm.kl.coef == pytest.approx(0.45)
    # The next step of the optimizer uses it, and so does a learner that goes on from here.
    resumed = Updater(make_model(dtype=torch.float64), row, FREE)
    resumed.load_state_dict(copy.deepcopy(learner.state_dict()))
    assert resumed.algorithm == learner.algorithm
    assert learner.update(groups)["kl_coef"] == pytest.approx(0.45)
    greedy = Updater(make_model(dtype=torch.float64), row.changed({"kl.target": 1e-9}), FREE)
    greedy.update(groups)
    # Of k1 a few tokens' estimate may be negative.
    change = 1.1 if greedy.update(groups)["kl"] > 0 else 0.9
    assert greedy.algorithm.kl.coef == pytest.approx(0.5 * 0.9 * change)
    assert change == 1.1 or place == "reward"


def test_the_reference_is_refreshed(make_model, groups):
    row = GRPO.changed({"kl.coef": 0.04, "kl.ref_every": 2})
    learner = Updater(make_model(), row, OptimizerConfig(lr=1e-2))
    kls = [learner.update(groups)["kl"] for _ in range(4)]
    # Each estimate is made before the update's own step.
    assert [kl == pytest.approx(0, abs=1e-9) for kl in kls] == [True, False, True, False]


def test_a_reset_optimizer_repeats_its_first_step(make_model, groups):
    """AdamW's first step has the size of the rate, whatever the gradient's."""
    for forgets in (False, True):
        model = make_model()
        row = replace(GRPO, forget_optimizer=forgets)
        learner = Updater(model, row, OptimizerConfig(lr=1e-3))
        learner.update(groups)
        before = [p.detach().clone() for p in model.parameters()]
        learner.update([TrajectoryGroup(groups[0].trajectories[1:])])
        parts = [(p - b).abs().flatten() for p, b in zip(model.parameters(), before, strict=True)]
        moves = torch.cat(parts)
        whole = ((moves[moves > 0] - 1e-3).abs() < 1e-5).double().mean().item()
        assert (whole > 0.95) is forgets, whole


def test_an_episode_without_advantage_is_still_pulled_back(make_model, make_group):
    """In a constant group there is no advantage, but a log-ratio from the second step on."""
    groups = [
        make_group([[(2, 3, 1.0)], [(2, 4, 1.0)]]),
        make_group([[(2, 3, 1.0)], [(2, 4, 0.0)]], seed=1),
    ]
    row = ALGORITHMS["kimi"].changed({"surrogate.tau": 1.0, "minibatches": 1, "epochs": 2})
    weights = []
    for given in (groups, groups[1:]):
        model = make_model()
        Updater(model, row, OptimizerConfig(lr=1e-2, max_grad_norm=1e9)).update(given)
        weights.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert not torch.allclose(*weights, atol=1e-6)


def test_the_order_of_episodes_changes_nothing(make_model, groups):
    turned = [TrajectoryGroup(g.trajectories[::-1]) for g in groups[::-1]]
    results = []
    for given in (groups, turned):
        learner = Updater(make_model(dtype=torch.float64), GRPO, FREE)
        results.append(gradients_of(learner, lambda learner=learner, g=given: learner.update(g)))
    assert_gradients(results[0][0], results[1][0], atol=1e-7)


def test_observation_tokens_have_exactly_no_gradient(make_model, groups):
    """Of the last hidden states, those that predict no sampled token get a gradient of 0."""
    learner = Updater(make_model(), GRPO, FREE)
    hidden = []
    score_hidden = learner.model.root._hidden

    def watched(*given):
        states = score_hidden(*given)
        states.retain_grad()
        hidden.append(states)
        return states

    learner.model.root._hidden = watched
    learner.update(groups)
    (states,) = hidden
    reached = (states.grad != 0).any(-1).sum().item()
    assert reached == NUM_TOKENS
    assert states.shape[0] * states.shape[1] > NUM_TOKENS


def test_without_a_mask_observations_are_trained_like_actions(make_model, groups):
    """The gradient is that of a policy which had sampled the six observation tokens as well."""
    spoken = copy.deepcopy(groups)
    for group in spoken:
        for trajectory in group.trajectories:
            record = trajectory.segments[0]
            first = record.loss_mask.index(1)
            for i in range(first, len(record)):
                record.loss_mask[i], record.versions[i] = 1, 0
                record.sampling_logprobs[i] = record.sampling_logprobs[i] or -3.0
            for number, turn in enumerate(trajectory.turns):
                turn.num_tokens = record.turn_ids[first:].count(number)
    gradients, metrics = [], []
    for row, given in ((replace(GRPO, mask_observations=False), groups), (GRPO, spoken)):
        learner = Updater(make_model(), row, FREE)
        gradients.append(gradients_of(learner, lambda g=given, it=learner: it.update(g)))
    assert_gradients(gradients[0][0], gradients[1][0])
    for row in (replace(GRPO, mask_observations=False), GRPO):
        metrics.append(Updater(make_model(), row, FREE).update(groups))
    assert metrics[0]["num_tokens"] == metrics[1]["num_tokens"] + 6 == NUM_TOKENS + 6
    compared = "sampling/logp_difference_mean"
    assert metrics[0][compared] == pytest.approx(metrics[1][compared], rel=1e-6)


def test_text_after_the_last_action_is_not_read(make_model, groups):
    longer = copy.deepcopy(groups)
    for group in longer:
        for trajectory in group.trajectories:
            trajectory.segments[0].append_context([5, 6, 7], len(trajectory.turns))
    weights = []
    for given in (groups, longer):
        model = make_model()
        Updater(model, GRPO, OptimizerConfig(lr=1e-3)).update(given)
        weights.append(model.state_dict())
    for name, weight in weights[0].items():
        assert torch.equal(weight, weights[1][name])


def test_metrics_of_the_sampler_and_of_entropy(make_model, groups):
    model = make_model()
    learner = Updater(model, GRPO, FREE, max_tokens_per_micro_batch=20)
    members = [t for group in groups for t in group.trajectories]
    scores = [direct_scores(model, t) for t in members]
    logprobs, entropy = (torch.cat(x).detach() for x in zip(*scores, strict=True))
    metrics = learner.update(groups)
    difference = (logprobs + 3.0).abs()
    mean, largest = difference.mean().item(), difference.max().item()
    assert metrics["sampling/logp_difference_mean"] == pytest.approx(mean, rel=1e-4)
    assert metrics["sampling/logp_difference_max"] == pytest.approx(largest, rel=1e-4)
    assert metrics["entropy"] == pytest.approx(entropy.mean().item(), rel=1e-5)
    assert metrics["num_tokens"] == NUM_TOKENS
    assert metrics["learning_rate"] == 1e-3
    assert metrics["clip_ratio/region_mean"] == 0


def test_ratios_to_the_sampler_are_clipped(make_model, groups):
    """``old_logprobs="sampling"``: the recorded -3.0 is far from most of the model's."""
    model = make_model()
    learner = Updater(model, replace(GRPO, old_logprobs="sampling"), FREE)
    members = [t for group in groups for t in group.trajectories]
    low = high = 0
    total = 0.0
    for trajectory, advantage in zip(members, ADVANTAGES["unbiased"], strict=True):
        ratio = (direct_scores(model, trajectory)[0].detach() + 3.0).exp()
        low += int(((ratio < 0.8) & (advantage < 0)).sum())
        high += int(((ratio > 1.2) & (advantage > 0)).sum())
        clipped = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        total -= clipped.mean().item() / len(members)
    metrics = learner.update(groups)
    assert low > 0
    assert high > 0
    assert metrics["clip_ratio/low_mean"] == pytest.approx(low / NUM_TOKENS)
    assert metrics["clip_ratio/high_mean"] == pytest.approx(high / NUM_TOKENS)
    assert metrics["clip_ratio/region_mean"] == pytest.approx((low + high) / NUM_TOKENS)
    assert metrics["loss"] == pytest.approx(total, abs=1e-5)


def test_one_step_drops_sequences_far_from_the_sampler(make_model, groups):
    """With a single optimizer step pi_old is pi; the divergence is the sampler's from it."""
    model = make_model(dtype=torch.float64)
    members = [t for group in groups for t in group.trajectories]
    gone = []
    for trajectory, advantage in zip(members, ADVANTAGES["unbiased"], strict=True):
        divergence = (-3.0 - direct_scores(model, trajectory)[0].detach()).mean().item()
        gone.append(bool(advantage < 0 and divergence > 0.1))
    assert 0 < sum(gone) < len(gone)
    learner = Updater(model, GRPO.changed({"correction.drop_divergence": 0.1}), FREE)
    lengths = [sum(t.segments[0].loss_mask) for t in members]
    metrics = learner.update(groups)
    dropped = sum(n for n, left in zip(lengths, gone, strict=True) if left)
    assert metrics["clip_ratio/diverged_mean"] == pytest.approx(dropped / NUM_TOKENS)


def test_divergence_from_the_initial_model(make_model, groups):
    model = make_model()
    before = copy.deepcopy(model)
    row, config = GRPO.changed({"kl.coef": 0.04}), OptimizerConfig(lr=1e-2)
    learner = Updater(model, row, config, temperature=0.6)
    assert learner.update(groups)["kl"] == pytest.approx(0, abs=1e-9)
    members = [t for group in groups for t in group.trajectories]
    d = torch.cat(
        [direct_scores(model, t, 0.6)[0] - direct_scores(before, t, 0.6)[0] for t in members]
    )
    expected = (torch.exp(-d) - 1 + d).mean().item()
    assert expected > 1e-3
    second = learner.update(groups)
    assert second["kl"] == pytest.approx(expected, rel=1e-3)
    for name, weight in learner.reference.model.state_dict().items():
        assert torch.equal(weight, before.state_dict()[name])


def test_no_reference_is_kept_without_a_divergence(make_model):
    assert Updater(make_model(), GRPO, FREE).reference is None


def test_old_logprobs_are_those_at_the_start_of_the_update(make_model, groups):
    """The second epoch's ratios are to the weights before the first, and leave the clip range."""
    metrics = Updater(make_model(), replace(GRPO, epochs=3), OptimizerConfig(lr=3e-2)).update(
        groups
    )
    assert metrics["optimizer_steps"] == 3
    assert metrics["clip_ratio/region_mean"] > 0.1
    one = Updater(make_model(), GRPO, OptimizerConfig(lr=3e-2)).update(groups)
    assert one["clip_ratio/region_mean"] == 0
    for name in ("sampling/logp_difference_mean", "sampling/logp_difference_max"):
        assert metrics[name] == pytest.approx(one[name])


def test_each_episode_is_in_one_minibatch_of_each_epoch(make_model, groups):
    learner = Updater(make_model(), replace(GRPO, epochs=2, minibatches=3), FREE)
    seen = []
    score = learner.model.score

    def watched(micro):
        if torch.is_grad_enabled():
            seen.extend(micro.tokens.tolist())
        return score(micro)

    learner.model.score = watched
    metrics = learner.update(groups)
    assert metrics["optimizer_steps"] == 6
    assert sorted(seen[:NUM_TOKENS]) == sorted(seen[NUM_TOKENS:]) == list(range(NUM_TOKENS))


def test_shaped_rewards_replace_the_episodes_own(make_model, groups):
    shape_to_one(groups)
    metrics = Updater(make_model(), GRPO, FREE).update(groups)
    assert metrics["frac_reward_zero_std"] == 1.0
    assert metrics["grad_norm"] == 0.0


def test_imitation_is_the_models_own_cross_entropy(make_model, groups):
    model = make_model(dtype=torch.float64)
    learner = Updater(model, GRPO, FREE, max_tokens_per_micro_batch=30)
    segments = [t.segments[0] for group in groups for t in group.trajectories]
    got, metrics = gradients_of(learner, lambda: learner.supervised_update(segments))
    width = max(len(s) for s in segments)
    ids = torch.tensor([s.token_ids + [0] * (width - len(s)) for s in segments])
    labels = torch.tensor(
        [
            [t if m else -100 for t, m in zip(s.token_ids, s.loss_mask, strict=True)]
            + [-100] * (width - len(s))
            for s in segments
        ]
    )
    loss = model(input_ids=ids, labels=labels).loss
    assert metrics["loss"] == pytest.approx(loss.item(), abs=1e-6)
    assert_gradients(got, torch.autograd.grad(loss, learner.model.parameters()))


def test_imitation_memorises_a_text(make_model, make_trajectory):
    learner = Updater(make_model(), GRPO, OptimizerConfig(lr=1e-2))
    segment = make_trajectory([(4, 10, 0.0)]).segments[0]
    losses = [learner.supervised_update([segment])["loss"] for _ in range(40)]
    assert losses[0] > 2
    assert losses[-1] < 0.05
    assert learner.supervised_update([])["skipped_updates"] == 1


def test_episodes_without_an_advantage_cost_no_forward_pass(make_model, groups, make_group):
    """A constant group changes the loss's denominator, and the metrics say that they lack it."""
    constant = make_group([[(3, 6, 1.0)], [(3, 2, 1.0)]], seed=5)
    model = make_model(dtype=torch.float64)
    learner = Updater(model, ALGORITHMS["dapo-loss"], FREE)
    passes = []
    score = learner.model.score

    def watched(micro):
        passes.append((torch.is_grad_enabled(), micro.num_tokens))
        return score(micro)

    learner.model.score = watched
    got, metrics = gradients_of(learner, lambda: learner.update([*groups, constant]))
    assert passes == [(True, NUM_TOKENS)]
    loss = direct_loss(model, groups, ALGORITHMS["dapo-loss"]) * NUM_TOKENS / (NUM_TOKENS + 8)
    assert_gradients(got, torch.autograd.grad(loss, learner.model.parameters()))
    members = [t for group in groups for t in group.trajectories]
    entropy = torch.cat([direct_scores(model, t)[1] for t in members]).mean()
    assert metrics["entropy"] == pytest.approx(entropy.item(), abs=1e-6)
    assert metrics["frac_reward_zero_std"] == pytest.approx(1 / 3)
    assert (metrics["num_tokens"], metrics["unscored_tokens"]) == (NUM_TOKENS + 8, 8)


def test_a_step_without_an_advantage_has_a_gradient_of_zero(make_model, groups):
    """No pass of the learner's; the optimizer's averages decay as with any gradient of 0."""
    row = replace(GRPO, epochs=1)
    learner = Updater(make_model(), row, OptimizerConfig(lr=1e-3, weight_decay=0.0))
    learner.update(groups)
    before = copy.deepcopy(learner.optimizer.state_dict()["adamw"]["state"])
    score = learner.model.score

    def watched(micro):
        assert not torch.is_grad_enabled()
        return score(micro)

    learner.model.score = watched
    shape_to_one(groups)
    metrics = learner.update(groups)
    assert (metrics["loss"], metrics["grad_norm"], metrics["optimizer_steps"]) == (0, 0, 1)
    assert metrics["unscored_tokens"] == metrics["num_tokens"] == NUM_TOKENS
    assert "entropy" not in metrics
    for i, state in learner.optimizer.state_dict()["adamw"]["state"].items():
        torch.testing.assert_close(state["exp_avg"], 0.9 * before[i]["exp_avg"])


def test_a_stale_sampler_is_seen_where_no_episode_has_a_gradient(make_model, make_group):
    """Eight of twenty episodes are enough, and all of three where there are no more."""
    many = [make_group([[(3, 4, 0.0)], [(3, 2, 0.0)]], seed=seed) for seed in range(10)]
    few = [make_group([[(3, 4, 0.0)], [(3, 2, 0.0)], [(2, 5, 0.0)]], seed=5)]
    for groups, count in ((many, 8), (few, 3)):
        model = make_model()
        learner = Updater(model, GRPO, FREE)
        seen = []
        score = learner.model.score

        def watched(micro, score=score, seen=seen):
            seen.append(len(micro.lengths))
            return score(micro)

        learner.model.score = watched
        metrics = learner.update(groups)
        assert sum(seen) == count
        assert metrics["unscored_tokens"] == metrics["num_tokens"]
        assert "entropy" not in metrics
        members = [t for group in groups for t in group.trajectories]
        if count == 3:
            logprobs = torch.cat([direct_scores(model, t)[0] for t in members])
            away = (logprobs + 3.0).abs().mean().item()
            assert metrics["sampling/logp_difference_mean"] == pytest.approx(away, rel=1e-4)
        assert metrics["sampling/logp_difference_mean"] > 0.1, "the recorded -3.0 is stale"
        assert metrics["sampling/logp_difference_max"] > 0.1


@pytest.mark.parametrize(
    "row",
    [
        replace(GRPO, entropy_coef=0.1),
        GRPO.changed({"kl.coef": 0.1}),
        replace(ALGORITHMS["ppo"], epochs=1, whiten=False),
    ],
    ids=["entropy", "divergence", "values"],
)
def test_other_losses_train_episodes_without_an_advantage(make_model, groups, make_group, row):
    nothing = make_group([[(3, 6, 0.0)], [(3, 2, 0.0)]], seed=5)
    learner = Updater(make_model(), row, FREE)
    trained = []
    score = learner.model.score

    def watched(micro):
        if torch.is_grad_enabled():
            trained.extend(micro.tokens.tolist())
        return score(micro)

    learner.model.score = watched
    learner.update([*groups, nothing])
    assert sorted(trained) == list(range(NUM_TOKENS + 8))
