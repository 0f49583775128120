import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.credit.batch import Batch
from rl.rollout.trajectory import Segment, Trajectory, TrajectoryGroup, Turn


def segment(token_ids, loss_mask, turn_ids=None, offset=0, parent=None):
    return Segment(
        token_ids=token_ids,
        loss_mask=loss_mask,
        sampling_logprobs=[-0.1 * t * m for t, m in zip(token_ids, loss_mask, strict=True)],
        versions=[0 if m else -1 for m in loss_mask],
        turn_ids=turn_ids or [0] * len(token_ids),
        offset=offset,
        parent=parent,
    )


def episode(segments, turns, **ending):
    records = [Turn("", "", "stop_token", tokens, {"r": reward}) for tokens, reward in turns]
    return Trajectory("test", {}, 0, 0, 0, segments, records, **(ending or {"terminated": True}))


def test_the_shift_is_made_once():
    """P P A A O A: the sampled tokens 7, 8, 5 stand at 2, 3, 5 and are predicted one before."""
    record = episode(
        [segment([3, 4, 7, 8, 9, 5], [0, 0, 1, 1, 0, 1], [0, 0, 0, 0, 1, 1])],
        [(2, 0.5), (1, 1.0)],
    )
    batch = Batch.from_groups([TrajectoryGroup([record])])
    assert [row.tolist() for row in batch.rows] == [[3, 4, 7, 8, 9]]
    assert batch.source.tolist() == [1, 2, 4]
    assert batch.targets.tolist() == [7, 8, 5]
    assert batch.sampling_logprobs.tolist() == pytest.approx([-0.7, -0.8, -0.5])
    assert batch.turn_ends.tolist() == [1, 2]
    assert batch.turn_rewards.tolist() == [0.5, 1.0]
    assert batch.rewards.tolist() == [1.5]


def test_observations_are_trained_without_a_mask():
    """P P A A O A O: the prompt and what follows the last action are still left out."""
    record = episode(
        [segment([3, 4, 7, 8, 9, 5, 6], [0, 0, 1, 1, 0, 1, 0], [0, 0, 0, 0, 1, 1, 2])],
        [(2, 0.5), (1, 1.0)],
    )
    batch = Batch.from_groups([TrajectoryGroup([record])], mask_observations=False)
    assert batch.targets.tolist() == [7, 8, 9, 5]
    assert batch.source.tolist() == [1, 2, 3, 4]
    assert batch.sampled.tolist() == [True, True, False, True]
    assert batch.sampling_logprobs.tolist() == pytest.approx([-0.7, -0.8, 0.0, -0.5])
    assert batch.turn_ends.tolist() == [1, 3]
    assert batch.turn_rewards.tolist() == [0.5, 1.0]


def test_a_row_ends_before_its_last_sampled_token():
    record = episode([segment([3, 7, 9, 9, 9], [0, 1, 0, 0, 0])], [(1, 0.0)])
    assert [row.tolist() for row in Batch.from_groups([TrajectoryGroup([record])]).rows] == [[3]]


def test_a_fork_trains_what_it_does_not_share():
    forked = episode(
        [
            segment([3, 7, 9, 8], [0, 1, 0, 1], [0, 0, 1, 1]),
            segment([3, 7, 6, 5, 4], [0, 0, 0, 1, 1], [0, 0, 2, 2, 2], offset=2, parent=0),
        ],
        [(1, 0.1), (1, 0.2), (2, 0.3)],
    )
    batch = Batch.from_groups([TrajectoryGroup([forked])])
    assert [row.tolist() for row in batch.rows] == [[3, 7, 9], [3, 7, 6, 5]]
    assert batch.targets.tolist() == [7, 8, 5, 4]
    assert batch.source.tolist() == [0, 2, 2, 3]
    assert batch.episode_ids.tolist() == [0, 0, 0, 0]
    assert batch.turn_ends.tolist() == [0, 1, 3]
    dense, mask = batch.per_episode(torch.arange(4.0))
    assert dense.tolist() == [[0, 1, 2, 3]]
    assert mask.all()


def test_a_shared_prefix_marked_as_sampled_is_a_contradiction():
    fork = segment([3, 7, 6, 5], [0, 1, 0, 1], offset=2, parent=0)
    record = episode([segment([3, 7], [0, 1]), fork], [(3, 0.0)])
    with pytest.raises(AssertionError, match="trained twice"):
        Batch.from_groups([TrajectoryGroup([record])])


def test_failed_and_empty_episodes_are_counted():
    failed = episode([segment([3, 7], [0, 1])], [(1, 0.0)], failure="sandbox died")
    empty = episode([segment([3], [0])], [], truncated=True, stop_reason="context_full")
    good = episode([segment([3, 7], [0, 1])], [(1, 1.0)])
    batch = Batch.from_groups([TrajectoryGroup([failed, empty]), TrajectoryGroup([good])])
    assert (batch.num_failed, batch.num_empty, batch.num_tokens) == (1, 1, 1)
    assert batch.rewards.tolist() == [0.0, 1.0]
    assert batch.group_ids.tolist() == [0, 1]
    assert batch.episode_ids.tolist() == [1]


def test_rewards_of_a_turn_without_tokens_go_to_the_turn_before():
    record = episode(
        [segment([3, 7, 8, 5], [0, 1, 0, 1], [0, 0, 2, 2])], [(1, 0.5), (0, 0.25), (1, 1.0)]
    )
    batch = Batch.from_groups([TrajectoryGroup([record])])
    assert batch.turn_ends.tolist() == [0, 1]
    assert batch.turn_rewards.tolist() == [0.75, 1.0]


def test_shaped_rewards_count_at_the_last_turn(groups):
    shaped = [1.5, 0.0, 0.75, 1.0, -0.5]
    finished = [trajectory for group in groups for trajectory in group.finished]
    for trajectory, total in zip(finished, shaped, strict=True):
        trajectory.shaping = {"half": 0.5 * (total - trajectory.reward)}
        trajectory.shaping["other half"] = trajectory.shaping["half"]
    batch = Batch.from_groups(groups)
    assert batch.rewards.tolist() == shaped
    assert batch.turn_rewards.tolist() == [0, 1.5, 0, 0.5, 0, 0.25, 1, -0.5]


def test_a_sampled_first_token_is_refused():
    with pytest.raises(ValueError, match="start the segment with a prompt token"):
        Batch.from_segments([segment([3, 4], [1, 1])])


def test_nothing_at_all():
    batch = Batch.from_groups([])
    assert batch.num_tokens == 0
    assert batch.micro_batches(100) == []
    assert batch.per_episode(torch.zeros(0))[0].shape == (0, 0)


def test_micro_batches_hold_rows_of_like_length():
    lengths = [5, 2, 9, 2, 5, 30]
    batch = Batch.from_segments([segment([3] * n + [4], [0] * n + [1]) for n in lengths])
    shapes = [tuple(micro.input_ids.shape) for micro in batch.micro_batches(18)]
    assert shapes == [(1, 30), (2, 9), (3, 5)]
    chosen = torch.tensor([False, True, False, True, False, False])
    (micro,) = batch.micro_batches(18, chosen)
    assert micro.tokens.tolist() == [1, 3]
    assert micro.lengths.tolist() == [2, 2]


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    count=st.integers(1, 9),
    max_tokens=st.integers(1, 80),
)
def test_every_token_keeps_its_identity(seed, count, max_tokens):
    """Whatever the cut, a micro-batch's token is read right behind what preceded it."""
    generator = np.random.default_rng(seed)
    segments = []
    for _ in range(count):
        length = int(generator.integers(2, 20))
        mask = [0, *generator.integers(0, 2, length - 1).tolist()]
        segments.append(segment(generator.integers(0, 1000, length).tolist(), mask))
    batch = Batch.from_segments(segments)
    expected = [
        (s.token_ids[:t], s.token_ids[t]) for s in segments for t in range(len(s)) if s.loss_mask[t]
    ]
    seen = {}
    for micro in batch.micro_batches(max_tokens):
        rows, width = micro.input_ids.shape
        assert rows == 1 or rows * width <= max_tokens
        for token, source, target in zip(micro.tokens, micro.source, micro.targets, strict=True):
            row, position = divmod(int(source), width)
            assert position < micro.lengths[row]
            seen[int(token)] = (micro.input_ids[row, : position + 1].tolist(), int(target))
    assert seen == dict(enumerate(expected))
