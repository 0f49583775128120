"""What must not matter: how a step is cut, padded, ordered and spread, and what was observed.

The learner runs as it is, but its models are tables: each sampled token has an id of its own, and
its log-probability is looked up by it. So log-probabilities stay what they are when the tokens
around change, and the gradient has one entry for each token. Scores are read from padded rows that
hold NaN wherever nothing was sampled.
"""

from dataclasses import replace
from unittest import mock

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from agents.completion import Completion, FinishReason
from rl.credit.algorithms import ALGORITHMS
from rl.credit.batch import Batch
from rl.credit.losses import TokenScores
from rl.credit.steps import policy_portions
from rl.learner.ranks.world import SOLO
from rl.learner.scoring import ScoringModel
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from rl.rollout.trajectory import Segment, Trajectory, TrajectoryGroup, Turn

FREE = OptimizerConfig(lr=1e-3, max_grad_norm=1e9)
FIRST = 10
"""The id of the first sampled token; those below are observations."""
SIZE = 400
TOLERANCE = {"atol": 1e-10, "rtol": 1e-10}
ROWS = {
    # Every part of the loss at once, with ratios that are not 1.
    name: row.changed(
        {
            "epochs": 1,
            "minibatches": 1,
            "old_logprobs": "update"
            if row.surrogate.name in ("reinforce", "oreal")
            else "sampling",
            "kl.coef": 0.1,
            "entropy_coef": 0.01,
            "max_tokens": 30 if row.max_tokens else None,
        }
    )
    for name, row in ALGORITHMS.items()
}
_CORRECTIONS = ("tis", "icepop", "token-mask", "outlier-mask", "seq-tis", "seq-icepop", "seq-mask")
for _correction in (*_CORRECTIONS, "geo-mask"):
    ROWS[_correction] = ROWS["grpo"].changed(
        {"old_logprobs": "update", "correction.kind": _correction}
    )
ROWS["dropped"] = ROWS["grpo"].changed({"correction.drop_divergence": 0.05})
ROWS["process"] = ROWS["grpo"].changed({"advantage": "group-process"})
ROWS["prompt-mean"] = replace(ROWS["grpo"], aggregation="prompt-mean")
EVERY_ROW = pytest.mark.parametrize("name", list(ROWS))


def table(seed, scale):
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(SIZE, generator=generator, dtype=torch.float64)


LOGPROBS = -table(0, 1.0).abs() - 0.05
SAMPLING = torch.minimum(LOGPROBS + table(1, 0.3), torch.tensor(-0.01))
REFERENCE = LOGPROBS + table(2, 0.3)
VALUES, BELIEFS = table(3, 0.5), table(4, 1.0)


class TableModel(ScoringModel):
    """A model whose scores depend on a token's id alone."""

    world = SOLO

    def __init__(self, logprobs, with_values, packing):
        self.packs = packing
        self.logprobs = nn.Parameter(logprobs.clone())
        self.entropy = nn.Parameter(table(5, 1.0))
        self.values = nn.Parameter(VALUES.clone())
        self.value_head = nn.Linear(1, 1) if with_values else None

    model = None
    device = torch.device("cpu")
    dtype = torch.float64

    def parameters(self):
        return [self.logprobs, self.entropy, self.values]

    def micro_batches(self, batch, max_tokens, episodes=None, *, whole=False):
        return batch.micro_batches(
            max_tokens, episodes, whole=whole, packed=max_tokens * self.packs
        )

    def shared(self, parts):
        return [(micro, True) for micro in parts]

    def score(self, micro):
        def read(numbers):
            padded = torch.full((micro.input_ids.numel(),), torch.nan, dtype=torch.float64)
            padded = padded.index_put((micro.source,), numbers[micro.targets])
            return padded[micro.source]

        values = None if self.value_head is None else read(self.values)
        return TokenScores(read(self.logprobs), read(self.entropy), values)


class Beliefs:
    """What a model of tokens would say."""

    def scores(self, batch):
        return BELIEFS[torch.from_numpy(batch.targets)]

    def accumulate(self, batch, scores):
        return {}

    def step(self):
        pass


def reference(model, algorithm, temperature, *, memory, packing, world):
    """What divergences are measured from, where any is."""
    return TableModel(REFERENCE, False, packing) if algorithm.kl.coef > 0 else None


def make_learner(row, max_tokens=10_000, packing=False):
    home = "rl.learner.updater."
    with (
        mock.patch(
            home + "ScoringModel",
            lambda *_, with_values, packing, **_rest: TableModel(LOGPROBS, with_values, packing),
        ),
        mock.patch(home + "make_reference", reference),
        mock.patch(home + "TokenRewards", lambda *_, **_rest: Beliefs()),
        mock.patch(home + "shard"),
    ):
        return Updater(None, row, FREE, max_tokens_per_micro_batch=max_tokens, packing=packing)


def gradient(row, groups, max_tokens=10_000, packing=False):
    """The loss, and its gradient by what each token's id says, of one update."""
    learner = make_learner(row, max_tokens, packing)
    parameters = learner.model.parameters()
    found = []

    def keep():
        found.append(
            torch.stack([torch.zeros(SIZE) if p.grad is None else p.grad for p in parameters])
        )
        learner.optimizer.zero_grad()

    learner.optimizer.step = keep
    metrics = learner.update(groups)
    (slopes,) = found
    return metrics["loss"], slopes


episode = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([0.0, 0.25, 1.0]), st.sampled_from("xy")),
    min_size=1,
    max_size=3,
)
"""Turns: sampled tokens, reward, what the environment answers."""
plans = st.lists(st.lists(episode, min_size=1, max_size=4), min_size=1, max_size=3)


def play(plan, seed=0):
    """Groups as planned; observations of any length and content follow from ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    groups, sampled, turns_seen = [], FIRST, 0
    for members in plan:
        trajectories = []
        for member, planned in enumerate(members):
            segment, turns = Segment(), []
            for index, (count, reward, answer) in enumerate(planned):
                length = int(torch.randint(1, 7, (), generator=generator))
                observed = torch.randint(0, FIRST, (length,), generator=generator).tolist()
                segment.append_context(observed, index)
                ids = tuple(range(sampled, sampled + count))
                logprobs = tuple(SAMPLING[list(ids)].tolist())
                reason = FinishReason.STOP_TOKEN
                segment.append_completion(Completion(ids, logprobs, (0,) * count, reason), index)
                value = VALUES[turns_seen].item()
                turn = Turn("", answer, "stop_token", count, {"task": reward}, value=value)
                turns.append(turn)
                sampled, turns_seen = sampled + count, turns_seen + 1
            trajectory = Trajectory("t", {}, 0, 0, member, [segment], turns, terminated=True)
            trajectory.outcome = float(trajectory.reward > 0.5)
            trajectories.append(trajectory)
        groups.append(TrajectoryGroup(trajectories))
    return groups


def same(got, expected):
    assert got[0] == pytest.approx(expected[0], abs=1e-10)
    torch.testing.assert_close(got[1], expected[1], **TOLERANCE)


@EVERY_ROW
@settings(deadline=None, max_examples=6)
@given(plan=plans, max_tokens=st.integers(1, 60), packing=st.booleans())
def test_how_a_step_is_cut_and_padded(name, plan, max_tokens, packing):
    groups = play(plan)
    cut = gradient(ROWS[name], groups, max_tokens, packing)
    same(cut, gradient(ROWS[name], groups))


# SPIRAL's moving averages take one episode after the other, so their order is part of the formula.
@pytest.mark.parametrize("name", [name for name in ROWS if name != "spiral"])
@settings(deadline=None, max_examples=6)
@given(plan=plans, random=st.randoms(use_true_random=False))
def test_the_order_of_groups_and_members(name, plan, random):
    groups = play(plan)
    turned = [TrajectoryGroup(random.sample(g.trajectories, len(g.trajectories))) for g in groups]
    random.shuffle(turned)
    got = gradient(ROWS[name], turned)
    same(got, gradient(ROWS[name], groups))


@EVERY_ROW
@settings(deadline=None, max_examples=6)
@given(plan=plans, seed=st.integers(1, 2**31))
def test_observations_change_nothing(name, plan, seed):
    groups, others = play(plan), play(plan, seed)
    got = gradient(ROWS[name], others)
    same(got, gradient(ROWS[name], groups))


def in_segments(trajectory):
    """The same episode with a segment for each turn, as an agent that rewrites its context has."""
    (whole,) = trajectory.segments
    segments = []
    for turn in range(len(trajectory.turns)):
        segments.append(Segment())
        for name in ("token_ids", "loss_mask", "sampling_logprobs", "versions", "turn_ids"):
            rows = zip(getattr(whole, name), whole.turn_ids, strict=True)
            setattr(segments[-1], name, [value for value, of_turn in rows if of_turn == turn])
    return replace(trajectory, segments=segments)


@EVERY_ROW
@settings(deadline=None, max_examples=6)
@given(plan=plans, max_tokens=st.integers(1, 60))
def test_the_number_of_segments_changes_nothing(name, plan, max_tokens):
    groups = play(plan)
    apart = [TrajectoryGroup([in_segments(t) for t in group.trajectories]) for group in groups]
    got = gradient(ROWS[name], apart, max_tokens)
    same(got, gradient(ROWS[name], groups))


@EVERY_ROW
@settings(deadline=None, max_examples=6)
@given(plan=plans, seed=st.integers(0, 2**31), ranks=st.integers(1, 3))
def test_parts_computed_separately_add_up(name, plan, seed, ranks):
    """As data parallelism does: weights and advantages are the step's, the parts add up."""
    row, groups = ROWS[name], play(plan)
    batch = Batch.from_groups(groups)
    learner = make_learner(row)
    scores = None if learner.token_rewards is None else learner.token_rewards.scores(batch)
    fixed, _ = learner._fixed_terms(batch, learner._scores_before(batch), scores)
    everyone = torch.ones(len(batch.rewards), dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    owner = torch.randint(0, ranks, (len(batch.rewards),), generator=generator)
    loss, slopes = 0.0, torch.zeros(3, SIZE, dtype=torch.float64)

    def cut(batch, episodes):
        return batch.micro_batches(12, episodes)

    for rank in range(ranks):
        parameters = learner.model.parameters()
        for portion in policy_portions(row, batch, fixed, everyone, owner == rank, cut):
            terms = portion.terms(row, learner.model.score(portion.micro))
            loss += terms.loss.item()
            parts = torch.autograd.grad(terms.loss, parameters, allow_unused=True)
            for total, part in zip(slopes, parts, strict=True):
                total += 0 if part is None else part
    same((loss, slopes), gradient(row, groups))


@pytest.mark.quick
@EVERY_ROW
def test_a_group_without_a_token_is_counted_and_changes_nothing(name):
    plan = [[[(2, 1.0, "x"), (1, 0.0, "y")], [(3, 0.0, "x")]], [[(1, 0.25, "y")], [(2, 1.0, "x")]]]
    groups = play(plan)
    silent = play([[[(1, 1.0, "x")], [(1, 0.0, "x")]]])[0]
    for trajectory in silent.trajectories:
        trajectory.segments = [Segment([1, 2], [0, 0], [0.0, 0.0], [-1, -1], [0, 0])]
        trajectory.turns = [replace(turn, num_tokens=0) for turn in trajectory.turns]
    row = ROWS[name]
    learner = make_learner(row)
    assert learner.update([silent]) == {
        "num_tokens": 0.0,
        "failed_episodes": 0.0,
        "empty_episodes": 2.0,
        "masked_episodes": 0.0,
        "skipped_updates": 1.0,
    }
    if row.advantage.name == "batch-outcome":
        return  # Its returns are in the batch's mean: nothing was sampled, but something earned.
    both = [*groups, silent]
    same(gradient(row, both), gradient(row, groups))
