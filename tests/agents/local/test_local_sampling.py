"""The sampler against the exact distributions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from agents.completion import SamplingParams
from agents.local.sampling import sample, uniforms

PROBS = [0.4, 0.25, 0.15, 0.1, 0.06, 0.04]
CHI2_999 = {2: 13.82, 5: 20.52, 9: 27.88, 99: 148.2}
"""Quantiles of the chi-square distribution by degrees of freedom: 1 false alarm in 1000."""


def asked(temperature=1.0, top_p=1.0, top_k=0):
    return SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k)


def draw(logits, count, seed=0, **how):
    """``count`` tokens from one row of logits, drawn with one stream."""
    stream = list(itertools.islice(uniforms(seed), count))
    rows = logits.expand(count, -1)
    return sample(rows, [asked(**how)] * count, stream)


def chi_square(token_ids, probs):
    expected = torch.tensor(probs, dtype=torch.float64) * len(token_ids)
    observed = torch.bincount(token_ids, minlength=len(probs)).double()
    return float(((observed - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_frequencies_follow_the_softmax_at_the_temperature(temperature):
    logits = torch.tensor(PROBS).log() + 3.0
    powered = [p ** (1 / temperature) for p in PROBS]
    expected = [p / sum(powered) for p in powered]
    drawn = draw(logits, 100_000, temperature=temperature)
    assert chi_square(drawn.token_ids, expected) < CHI2_999[5]
    assert drawn.logprobs.exp().allclose(torch.tensor(expected)[drawn.token_ids], atol=1e-6)


@pytest.mark.parametrize(
    ("top_p", "support"),
    [(0.3, 1), (0.39, 1), (0.41, 2), (0.64, 2), (0.7, 3), (0.95, 5), (0.97, 6), (1.0, 6)],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p, support):
    # Token 0 is not the likeliest: ranks and ids must not be mixed up.
    order = [3, 0, 5, 1, 4, 2]
    logits = torch.tensor([PROBS[i] for i in order], dtype=torch.float64).log()
    kept = sum(PROBS[:support])
    expected = [PROBS[i] / kept if i < support else 0.0 for i in order]
    drawn = draw(logits, 50_000, top_p=top_p)
    present = [e > 0 for e in expected]
    counts = torch.bincount(drawn.token_ids, minlength=6)
    assert [bool(c) for c in counts] == present
    observed, wanted = counts[present].double(), torch.tensor(expected)[present] * 50_000
    assert float(((observed - wanted) ** 2 / wanted).sum()) < CHI2_999[5]
    # Log-probabilities are those of the distribution that is left.
    assert drawn.logprobs.exp().allclose(
        torch.tensor(expected, dtype=torch.float64)[drawn.token_ids]
    )
    left = [] if top_p == 1 else [i for i, there in enumerate(present) if there]
    assert drawn.supports == [left] * 50_000


def test_top_p_over_a_large_vocabulary_needs_the_full_sort_only_where_mass_is_spread():
    vocabulary = 2000
    flat, peaked = torch.zeros(vocabulary), torch.full((vocabulary,), -20.0)
    peaked[[7, 1999]] = torch.tensor([0.0, 1.0])
    count = 3000
    logits = torch.stack([flat, peaked]).repeat(count, 1)
    stream = list(itertools.islice(uniforms(5), 2 * count))
    drawn = sample(logits, [asked(top_p=0.5), asked(top_p=0.9)] * count, stream)
    of_flat, of_peaked = drawn.token_ids[::2], drawn.token_ids[1::2]
    assert set(of_peaked.tolist()) == {7, 1999}
    # Half of the flat vocabulary, in whatever order equals are ranked.
    assert 900 < len(set(of_flat.tolist())) <= 1001


@pytest.mark.parametrize(
    ("top_k", "top_p", "support"),
    # Of three tokens, with 0.5, 0.3125 and 0.1875 of what they have together.
    [
        *[(1, 1.0, 1), (2, 1.0, 2), (5, 1.0, 5), (6, 1.0, 6), (9, 1.0, 6)],
        *[(3, 0.49, 1), (3, 0.51, 2), (3, 0.8, 2), (3, 0.82, 3), (2, 0.62, 2), (2, 0.61, 1)],
    ],
)
def test_top_p_applies_after_top_k(top_k, top_p, support):
    order = [3, 0, 5, 1, 4, 2]
    logits = torch.tensor([PROBS[i] for i in order]).log()
    kept = sum(PROBS[:support])
    expected = torch.tensor([PROBS[i] / kept if i < support else 0.0 for i in order])
    drawn = draw(logits, 20_000, top_k=top_k, top_p=top_p)
    assert drawn.supports == [[i for i, p in enumerate(expected) if p > 0]] * 20_000
    assert set(drawn.token_ids.tolist()) == set(drawn.supports[0])
    assert drawn.logprobs.exp().allclose(expected[drawn.token_ids], atol=1e-6)
    assert drawn.logprobs.max() <= 0


@pytest.mark.parametrize("top_k", [3, 256, 257, 1500])
def test_top_k_of_a_large_vocabulary_is_exact(top_k):
    logits = torch.randn(2000, generator=torch.Generator().manual_seed(1))
    drawn = sample(logits[None], [asked(top_k=top_k)], [0.7])
    best = logits.topk(top_k).indices.sort().values.tolist()
    assert drawn.supports == [best]
    inside = logits[best].log_softmax(-1)[best.index(int(drawn.token_ids[0]))]
    assert drawn.logprobs[0] == pytest.approx(float(inside), abs=1e-5)


def test_supports_of_rows_are_independent():
    """Coarse logits have equals at the cut, which the shortlist and the full sort rank in ways of
    their own: a row goes the one that it would go alone."""
    generator = torch.Generator().manual_seed(2)
    logits = (4 * torch.randn(40, 3000, generator=generator)).bfloat16().float()
    params, u = asked(top_p=0.9), [0.37, 0.81]
    flat = torch.zeros(3000)
    assert len(sample(flat[None], [params], [0.5]).supports[0]) > 256
    for row in logits:
        alone = sample(row[None], [params], u[:1])
        beside = sample(torch.stack([row, flat]), [params] * 2, u)
        assert len(alone.supports[0]) < 256
        assert (alone.token_ids[0], alone.supports[0]) == (beside.token_ids[0], beside.supports[0])


def test_a_request_without_support_gets_none():
    params = SamplingParams(top_k=2, with_support=False)
    drawn = sample(torch.tensor([[0.0, 0.0, -1.0]]), [params], [0.1])
    assert drawn.supports == [[]]
    assert drawn.logprobs.tolist() == pytest.approx([-0.6931472])


def test_greedy_rows_take_the_likeliest_at_temperature_one():
    logits = torch.tensor([[0.0, 2.0, 1.0], [5.0, 0.0, 0.0], [0.0, 0.0, 9.0]])
    params = [asked(0.0), asked(0.0, top_p=0.1, top_k=2), asked()]
    drawn = sample(logits, params, [0.99, 0.99, 0.5])
    assert drawn.token_ids.tolist() == [1, 0, 2]
    assert drawn.logprobs.allclose(logits.log_softmax(-1).amax(-1))


@pytest.mark.parametrize("u", [0.0, 1 - 2**-24])
@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_tokens_without_mass_are_never_drawn(u, top_p):
    logits = torch.tensor([[-torch.inf, 0.3, -torch.inf, 0.1, -torch.inf]])
    expected = {(0.0, 1.0): 1, (0.0, 0.9): 1}.get((u, top_p), 3)
    assert sample(logits, [asked(top_p=top_p)], [u]).token_ids.tolist() == [expected]


def test_rows_with_and_without_top_p_do_not_disturb_each_other():
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    temperatures, top_ps = [1.0, 0.0, 0.7, 2.0, 1.0, 1.0], [1.0, 0.5, 0.3, 1.0, 0.8, 1.0]
    params = list(map(asked, temperatures, top_ps, [0, 3, 4, 7, 50, 1]))
    u = [0.1, 0.9, 0.4, 0.6, 0.7, 0.2]
    together = sample(logits, params, u)
    for row in range(6):
        alone = sample(logits[row : row + 1], [params[row]], [u[row]])
        assert alone.supports[0] == together.supports[row]
        assert alone.token_ids[0] == together.token_ids[row]
        assert alone.logprobs[0] == together.logprobs[row]


def test_the_first_numbers_of_neighbouring_seeds_are_independent():
    first = np.array([next(uniforms(seed)) for seed in range(20_000)])
    counts, _ = np.histogram(first, bins=10, range=(0, 1))
    assert ((counts - 2000) ** 2 / 2000).sum() < CHI2_999[9]
    pairs, _, _ = np.histogram2d(first[:-1], first[1:], bins=10, range=[(0, 1)] * 2)
    assert ((pairs - 199.99) ** 2 / 199.99).sum() < CHI2_999[99]


def test_a_stream_is_a_function_of_its_seed():
    def take(seed):
        return list(itertools.islice(uniforms(seed), 200))

    assert take(4) == take(4)
    assert take(4) != take(5)
    assert take(-1) != take(1)
    assert all(0 <= u < 1 for u in take(2**70))
