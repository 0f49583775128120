"""Which tokens a packed row computes, and what each of them reads."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.credit.batch import Batch
from rl.packing.layout import KEYS_PER_TOKEN, pack
from rl.packing.prefixes import MIN_SHARED, split
from rl.rollout.trajectory import Segment


def drawn(generator, count):
    return generator.integers(0, 1000, count)


def alone(count):
    return [[i] for i in range(count)]


def computed(sequences, max_tokens=10**6, units=None):
    """Tokens of each packed row."""
    parts = split(sequences, units or alone(len(sequences)), max_tokens)
    return [len(pack([sequences[i] for i in p.sequences], p.shared).token_ids) for p in parts]


def text(ids, prompt):
    count = len(ids)
    mask = [0] * prompt + [1] * (count - prompt)
    return Segment(ids.tolist(), mask, [0.0] * count, [0] * count, [0] * count)


def group(generator, members, prompt, completion):
    shared = drawn(generator, prompt)
    return [np.concatenate([shared, drawn(generator, completion)]) for _ in range(members)]


def test_members_of_a_group_compute_their_prompt_once():
    """Two groups of 8, 724 prompt and 394 sampled tokens: the last one of each is never read."""
    generator = np.random.default_rng(0)
    rows = [row for _ in range(2) for row in group(generator, 8, 724, 394)]
    generator.shuffle(rows)
    batch = Batch.from_segments([text(row, 724) for row in rows])
    padded, packed = batch.micro_batches(4096), batch.micro_batches(4096, packed=4096)
    assert sum(micro.input_ids.numel() for micro in padded) == 16 * 1117 == 17_872
    assert [micro.input_ids.numel() for micro in packed] == [724 + 8 * 393] * 2
    assert [bucket.count for bucket in packed[0].layout.buckets] == [1, 8]
    assert sum(micro.num_tokens for micro in packed) == 16 * 394


def test_forks_compute_every_common_prefix_once():
    """A prompt, two first turns, and for each of them two continuations."""
    generator = np.random.default_rng(0)
    prompt, turns = drawn(generator, 40), [drawn(generator, 30), drawn(generator, 50)]
    ends = [[drawn(generator, 20), drawn(generator, 25)] for _ in turns]
    rows = [
        np.concatenate([prompt, turn, end])
        for turn, e in zip(turns, ends, strict=True)
        for end in e
    ]
    rows += [np.concatenate([prompt, turns[0]]), rows[0], rows[0][:55]]
    assert computed(rows) == [40 + 30 + 50 + 2 * (20 + 25) + 15]


def test_short_prefixes_and_unlike_rows_are_computed_apart():
    generator = np.random.default_rng(0)
    short = group(generator, 3, MIN_SHARED - 1, 20)
    assert computed(short) == [3 * (MIN_SHARED + 19)]
    assert computed(group(generator, 3, MIN_SHARED, 20)) == [MIN_SHARED + 60]
    assert computed([drawn(generator, 50), drawn(generator, 30)]) == [80]


def test_a_prefix_that_costs_more_attention_than_it_saves_is_computed_apart():
    generator = np.random.default_rng(0)
    assert computed(group(generator, 2, 20, 4000)) == [2 * 4020]
    assert computed(group(generator, 2, 3000, 1000)) == [3000 + 2 * 1000]


def test_a_tree_is_split_only_if_it_does_not_fit():
    generator = np.random.default_rng(0)
    rows = [row for _ in range(3) for row in group(generator, 4, 100, 50)]
    assert computed(rows, 300) == [300, 300, 300]
    assert computed(rows, 650) == [600, 300]
    for fill in (None, 1):
        parts = split(rows, alone(12), 299, fill)
        assert [len(part.sequences) for part in parts] == [3, 1] * 3
    assert computed(rows, 299) == [250, 150] * 3
    assert [len(part.sequences) for part in split(rows, alone(12), 650, 400)] == [4, 4, 4]
    system = drawn(generator, 30)
    rows = [np.concatenate([system, row]) for row in rows]
    assert computed(rows) == [30 + 900]
    assert computed(rows, 330) == [330] * 3


def test_units_stay_together():
    generator = np.random.default_rng(0)
    rows = [drawn(generator, 10) for _ in range(6)]
    units = [[0, 3], [1, 4], [2, 5]]
    parts = split(rows, units, 25)
    assert sorted(sorted(part.sequences) for part in parts) == units
    assert computed(rows, 5, units) == [20, 20, 20]


def contexts(layout, token_ids):
    """The tokens and positions that each token of the row reads, itself last."""
    starts, read = np.cumsum([0, *layout.sizes]).tolist(), {}
    positions = layout.positions[0].tolist()
    for start, bucket in zip(starts, layout.buckets, strict=False):
        before = [t for i in bucket.prefix for t in range(starts[i], starts[i + 1])]
        assert bucket.num_keys == len(before) + bucket.length
        for own in np.arange(start, start + bucket.size).reshape(bucket.count, -1).tolist():
            for place, t in enumerate(own):
                seen = before + own[: place + 1]
                read[t] = [token_ids[i] for i in seen], [positions[i] for i in seen]
    return read


def assert_chunks(layout, max_keys):
    """Chunks cover the buckets in order, and none reads more than ``max_keys`` keys."""
    assert [i for c in layout.chunks for i in c.buckets] == list(range(len(layout.buckets)))
    for chunk in layout.chunks:
        buckets = [b for i in chunk.buckets for b in [layout.buckets[i]] * layout.buckets[i].count]
        assert chunk.query_starts.diff().tolist() == [b.length for b in buckets]
        assert chunk.key_starts.diff().tolist() == [b.num_keys for b in buckets]
        assert chunk.num_tokens == chunk.query_starts[-1]
        assert chunk.longest_query == max(b.length for b in buckets)
        assert chunk.longest_key == max(b.num_keys for b in buckets)
        assert chunk.key_starts[-1] <= max_keys
    keys = [int(chunk.key_starts[-1]) for chunk in layout.chunks]
    # A chunk ends where the next bucket does not fit.
    firsts = [layout.buckets[c.buckets[0]] for c in layout.chunks[1:]]
    assert all(
        total + b.count * b.num_keys > max_keys for total, b in zip(keys, firsts, strict=False)
    )


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    count=st.integers(1, 12),
    max_tokens=st.integers(1, 300),
    whole=st.booleans(),
)
def test_every_token_reads_what_comes_before_it(seed, count, max_tokens, whole):
    generator = np.random.default_rng(seed)
    pieces = [drawn(generator, int(n)) for n in generator.integers(1, 40, 4)]
    rows = []
    for _ in range(count):
        path = generator.integers(0, 4, int(generator.integers(1, 4)))
        rows.append(np.concatenate([pieces[i] for i in path]))
    units = (
        [list(range(i, min(i + 2, count))) for i in range(0, count, 2)] if whole else alone(count)
    )
    seen = []
    for part in split(rows, units, max_tokens):
        members = [rows[i] for i in part.sequences]
        token_ids, layout, places = pack(members, part.shared)
        assert len(token_ids) == layout.positions.shape[1] == sum(layout.sizes)
        assert sorted(set(np.concatenate(places))) == list(range(len(token_ids)))
        assert len(token_ids) <= max_tokens or any(set(part.sequences) == set(u) for u in units)
        assert_chunks(layout, KEYS_PER_TOKEN * len(token_ids))
        read = contexts(layout, token_ids.tolist())
        for row, at in zip(members, places, strict=True):
            for t, place in enumerate(at.tolist()):
                assert read[place] == (row[: t + 1].tolist(), list(range(t + 1)))
        seen.extend(part.sequences)
    assert sorted(seen) == list(range(count))


def test_many_short_answers_after_one_prompt_are_computed_in_chunks():
    generator = np.random.default_rng(0)
    rows = group(generator, 40, 100, 2)
    (part,) = split(rows, alone(40), 1000)
    layout = pack([rows[i] for i in part.sequences], part.shared).layout
    assert layout.sizes == [100, 14, 14, 14, 14, 14, 10]
    # The row has 180 tokens, so a chunk reads at most 720 keys; an answer reads 102.
    assert [bucket.count for bucket in layout.buckets] == [1, 7, 7, 7, 7, 7, 5]
    assert_chunks(layout, 720)
    assert len(layout.chunks) == 7


def test_masks_are_the_lower_right_triangle():
    generator = np.random.default_rng(0)
    rows = group(generator, 2, 20, 3)
    (part,) = split(rows, alone(2), 100)
    layout = pack([rows[i] for i in part.sequences], part.shared).layout
    before, own = layout.masks
    assert before is None
    assert own.long().tolist() == [[1] * 21 + [0, 0], [1] * 22 + [0], [1] * 23]


@pytest.mark.parametrize("packed", [0, 100])
def test_an_empty_batch_has_no_micro_batch(packed):
    assert Batch.from_groups([]).micro_batches(100, packed=packed) == []
