import pytest
import torch

import rl.credit.logprobs
from rl.credit.logprobs import token_head


def naive(hidden, weight, bias, targets, temperature):
    logits = torch.nn.functional.linear(hidden, weight, bias).float() / temperature
    if hidden.dtype == torch.float64:
        logits = torch.nn.functional.linear(hidden, weight, bias) / temperature
    log_p = logits.log_softmax(-1)
    logprobs = log_p[torch.arange(len(targets)), targets]
    return logprobs, -(log_p.exp() * log_p).sum(-1)


def inputs(dtype, n=11, width=6, vocabulary=17):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(n, width, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, width, generator=generator).to(dtype).requires_grad_()
    bias = torch.randn(vocabulary, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(vocabulary, (n,), generator=generator)
    return hidden, weight, bias, targets


@pytest.fixture(params=[1, 40, 10**6], ids=["row by row", "two rows", "at once"])
def chunks(request, monkeypatch):
    monkeypatch.setattr(rl.credit.logprobs, "CHUNK_ELEMENTS", request.param)


@pytest.mark.parametrize("parts", ["logprobs", "entropy", "both"])
def test_the_head_is_the_naive_one(chunks, parts):
    hidden, weight, bias, targets = inputs(torch.float64)
    results = []
    for function in (naive, token_head):
        logprobs, entropy = function(hidden, weight, bias, targets, 0.7)
        slopes = torch.arange(1.0, 12.0, dtype=torch.float64)
        loss = torch.zeros((), dtype=torch.float64)
        if parts != "entropy":
            loss = loss + (slopes * logprobs).sum()
        if parts != "logprobs":
            loss = loss + (slopes.flip(0) * entropy).sum()
        gradients = torch.autograd.grad(loss, (hidden, weight, bias))
        results.append((logprobs, entropy, *gradients))
    for expected, got in zip(*results, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-12, rtol=1e-12)


def test_gradients_against_finite_differences():
    hidden, weight, bias, targets = inputs(torch.float64, n=3, width=4, vocabulary=5)
    assert torch.autograd.gradcheck(
        lambda h, w, b: token_head(h, w, b, targets, 1.3), (hidden, weight, bias)
    )


def test_entropies_that_are_known():
    logits = torch.tensor([[2.0, 1, 0, -1e4], [0, 0, 0, 0]], dtype=torch.float64)
    targets = torch.tensor([0, 3])
    logprobs, entropy = token_head(
        logits, torch.eye(4, dtype=torch.float64), None, targets, temperature=1.0
    )
    assert entropy.tolist() == pytest.approx([0.8323956, 1.3862944], abs=6e-8)
    assert logprobs.exp().tolist() == pytest.approx([0.665241, 0.25], abs=6e-7)


def test_bfloat16_models_are_scored_in_float32():
    hidden, weight, bias, targets = inputs(torch.bfloat16)
    logprobs, entropy = token_head(hidden, weight, bias, targets, 1.0)
    assert (logprobs.dtype, entropy.dtype) == (torch.float32, torch.float32)
    expected, _ = naive(hidden, weight, bias, targets, 1.0)
    torch.testing.assert_close(logprobs, expected, atol=1e-6, rtol=0)
    logprobs.sum().backward()
    assert weight.grad.dtype == torch.bfloat16
    (reference,) = torch.autograd.grad(naive(hidden, weight, bias, targets, 1.0)[0].sum(), weight)
    torch.testing.assert_close(weight.grad, reference, atol=0.06, rtol=0.02)


def test_frozen_weights_get_no_gradient():
    hidden, weight, _, targets = inputs(torch.float64)
    frozen = weight.detach()
    logprobs, _ = token_head(hidden, frozen, None, targets, 1.0)
    logprobs.sum().backward()
    assert frozen.grad is None
    assert hidden.grad.abs().sum() > 0


def test_logits_of_a_large_vocabulary_are_never_whole():
    """512 positions of 150k logits would be 307 MB in float32; saved for backward are 4 kB."""
    saved = []
    hidden = torch.zeros(512, 2, requires_grad=True)
    weight = torch.zeros(150_000, 2, requires_grad=True)

    def pack(x):
        saved.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        token_head(hidden, weight, None, torch.zeros(512, dtype=torch.long), 1.0)
    assert sum(saved) == hidden.numel() + weight.numel() + 512 + 512
