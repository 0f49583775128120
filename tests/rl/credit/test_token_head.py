import weakref
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import rl.credit.logprobs
import rl.learner.scoring
from rl.credit.batch import Batch
from rl.credit.logprobs import HEAD_BYTES, token_head
from rl.learner.scoring import ScoringModel
from rl.learner.settings import MemoryConfig
from rl.rollout.trajectory import Segment
from tests.helpers.small_learner import build_model


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


@pytest.mark.parametrize("max_bytes", [1, 600, 10**6], ids=["row by row", "two rows", "at once"])
@pytest.mark.parametrize("parts", ["logprobs", "entropy", "both"])
def test_the_head_is_the_naive_one(max_bytes, parts):
    hidden, weight, bias, targets = inputs(torch.float64)
    results = []
    for function in (naive, partial(token_head, max_bytes=max_bytes)):
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


@pytest.mark.parametrize(("max_bytes", "chunks"), [(600, 6), (10**6, 1)])
def test_the_last_chunk_is_not_computed_again(max_bytes, chunks, monkeypatch):
    made = []

    def log_p(*given):
        made.append(len(given[0]))
        return original(*given)

    original = rl.credit.logprobs._log_p
    monkeypatch.setattr(rl.credit.logprobs, "_log_p", log_p)
    hidden, weight, bias, targets = inputs(torch.float64)
    scores = token_head(hidden, weight, bias, targets, 0.7, max_bytes=max_bytes)
    assert len(made) == chunks
    loss = torch.stack(scores).square().sum()
    first = torch.autograd.grad(loss, (hidden, weight, bias), retain_graph=True)
    assert len(made) == 2 * chunks - 1
    # A second backward pass finds nothing kept, and computes all chunks.
    second = torch.autograd.grad(loss, (hidden, weight, bias))
    assert len(made) == 3 * chunks - 1
    assert all(map(torch.equal, first, second))


def test_scores_without_a_gradient_keep_nothing():
    hidden, weight, bias, targets = inputs(torch.float32)
    with torch.no_grad(), Peak() as peak:
        scores = token_head(hidden, weight, bias, targets, 1.0)
        assert len(scores) == 2
    assert sum(peak.alive.values()) < 1000 < peak.bytes


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


class Peak(TorchDispatchMode):
    """Largest sum of bytes of the tensors that are alive at a time."""

    def __init__(self):
        super().__init__()
        self.alive, self.bytes = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if not isinstance(tensor, torch.Tensor):
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self.alive:
                self.alive[key] = storage.nbytes()
                weakref.finalize(storage, self.alive.pop, key, None)
        self.bytes = max(self.bytes, sum(self.alive.values()))
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [2000, 20_000])
def test_the_buffers_keep_to_their_size_whatever_the_vocabulary(vocabulary, dtype):
    """64 positions: half of their logits fit into the buffers, or a twentieth."""
    max_bytes = 64 * 2000 * 2 * 4 // 2
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(64, 2, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(vocabulary, 2, generator=generator).to(dtype).requires_grad_()
    targets = torch.randint(vocabulary, (64,), generator=generator)
    with Peak() as forward:
        scores = token_head(hidden, weight, None, targets, 0.7, max_bytes=max_bytes)
    with Peak() as backward:
        torch.autograd.grad(sum(score.sum() for score in scores), (hidden, weight))
    # Beside the buffers: the weights, their gradient in float32 and in their type, and scores.
    assert 0.9 * max_bytes < forward.bytes < max_bytes + weight.nbytes + 4000
    gradients = weight.numel() * (4 + 2 * (dtype == torch.bfloat16))
    assert 0.7 * max_bytes < backward.bytes < max_bytes + weight.nbytes + gradients + 4000


def test_the_default_buffers_do_not_depend_on_the_vocabulary():
    memory = MemoryConfig()
    assert memory.head_bytes("cpu") == HEAD_BYTES == 128 * 2**20
    assert memory.head_bytes("cuda") == 1024 * 2**20
    assert MemoryConfig(head_mib=300).head_bytes("cuda") == 300 * 2**20
    with pytest.raises(ValueError, match=r"head_mib \(-1\) must be >= 0"):
        MemoryConfig(head_mib=-1)


def test_a_scored_micro_batch_uses_the_buffers_of_its_setting(monkeypatch):
    sizes = []

    def head(*given):
        sizes.append(given[-1])
        return token_head(*given)

    monkeypatch.setattr(rl.learner.scoring, "token_head", head)
    segment = Segment([1, 2, 3], [0, 1, 1], [0.0] * 3, [0] * 3, [0] * 3)
    batch = Batch.from_segments([segment])
    for memory in (MemoryConfig(), MemoryConfig(head_mib=5)):
        ScoringModel(build_model(), memory=memory).score_batch(batch, 100)
    assert sizes == [128 * 2**20, 5 * 2**20]
