"""A real server in bfloat16: an update that leaves one tensor out, which no probe can see."""

from __future__ import annotations

import pytest
import torch
from tiny_served import WINDOW, new_model, prober_of

from agents.serving import ManagedServer, Timeouts, WeightFolders, WeightsDiffer
from agents.vllm import VLLMServerPolicy, VLLMServerProcess

START_S = 420.0
TOLERANCE = 0.25


class Stale(WeightFolders):
    """Publishes some tensors of an earlier version."""

    def __init__(self, parent):
        super().__init__(parent)
        self.old = {}

    def write(self, weights, version):
        return super().write({**weights, **self.old}, version)


def step(model, rate=1e-6):
    """The first step of Adam on copies of the weights in float32."""
    drawn = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            signs = torch.randn(parameter.shape, generator=drawn).sign()
            parameter.copy_(parameter.float() + rate * signs)


@pytest.fixture
async def opened(server_config, tmp_path):
    model = new_model().bfloat16()
    prober, folders = prober_of(model, tolerance=TOLERANCE), Stale(tmp_path / "weights")
    process = VLLMServerProcess(server_config(dtype="bfloat16"))
    policy = VLLMServerPolicy(
        [ManagedServer(prober, runner=process, start_s=START_S)],
        folders,
        prober,
        context_window=WINDOW,
        timeouts=Timeouts(request_s=START_S, stall_s=60.0),
    )
    try:
        await policy.open()
        yield policy, model, folders
    finally:
        await policy.close()


async def test_an_update_in_bfloat16_that_leaves_one_tensor_out_fails(opened):
    policy, model, folders = opened
    await policy.load_weights(model.state_dict(), 1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    step(model)
    after, version = model.state_dict(), 2
    await policy.load_weights(after, version)
    metrics = policy.take_metrics()
    assert metrics["sync/tensors_compared"] == len(after)
    assert metrics["sync/max_difference"] < TOLERANCE
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    for part in ("embed_tokens", "k_proj", "o_proj", "up_proj", "down_proj"):
        name = next(name for name in moved if part in name)
        folders.old = {name: before[name]}
        if part == "embed_tokens":
            folders.old["lm_head.weight"] = before[name]
        version += 1
        with pytest.raises(WeightsDiffer, match=f"does not run version {version} of the weights"):
            await policy.load_weights(after, version)
        # The probe alone accepts the same weights.
        policy.compares_digests = False
        await policy.load_weights(after, version)
        assert policy.take_metrics()["sync/max_difference"] < TOLERANCE
        policy.compares_digests = True
    folders.old = {}
    await policy.load_weights(after, version + 1)
    assert policy.take_metrics()["sync/tensors_compared"] == len(after)
