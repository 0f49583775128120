"""Supervised learning: each conversation once per pass, the loss falls, cancelling ends it."""

from __future__ import annotations

import asyncio

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from agents.completion import Completion, FinishReason
from agents.segment import Segment
from rl.learner.settings import OptimizerConfig
from rl.runtime.imitation import imitate, supervised


@pytest.fixture
def model():
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        bos_token_id=None,
        eos_token_id=1,
        pad_token_id=0,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return LlamaForCausalLM(config).eval()


def conversation(read, said):
    segment = Segment()
    segment.append_context(read, 0)
    count = len(said)
    segment.append_completion(
        Completion(tuple(said), (0.0,) * count, (0,) * count, FinishReason.STOP_TOKEN), 0
    )
    return segment


SEGMENTS = [conversation([2, i], [i, 9]) for i in range(3, 8)]
OPTIMIZER = OptimizerConfig(lr=1e-2)


async def test_the_loss_falls_and_the_words_are_learned(model):
    losses = await imitate(supervised(model, OPTIMIZER), SEGMENTS, steps=60, batch_size=5, seed=0)
    assert len(losses) == 60
    assert losses[0] == pytest.approx(torch.log(torch.tensor(11.0)).item(), abs=0.2)
    assert losses[-1] < 0.1
    with torch.no_grad():
        logits = model(torch.tensor([[2, 4]])).logits[0, -1]
    assert int(logits.argmax()) == 4


async def test_the_seed_decides_the_order_and_with_it_the_losses(model):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}

    async def losses(seed):
        model.load_state_dict(state)
        return await imitate(
            supervised(model, OPTIMIZER), SEGMENTS, steps=4, batch_size=2, seed=seed
        )

    first = await losses(0)
    assert first == await losses(0)
    assert first != await losses(1)


async def test_micro_batches_and_packing_change_no_loss(model):
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    conversations = [conversation([2, i], [i] * (i - 2) + [9]) for i in range(3, 8)]
    found, longest = [], []
    model.base_model.register_forward_hook(
        lambda _, args, given, out: longest[-1].append(given["input_ids"].numel()), with_kwargs=True
    )
    for most, packing in ((4096, True), (4096, False), (10, True), (10, False)):
        model.load_state_dict(state)
        longest.append([])
        learner = supervised(model, OPTIMIZER, micro_batch_tokens=most, packing=packing)
        longest[-1].clear()
        found.append(await imitate(learner, conversations, steps=3, batch_size=5, seed=0))
    for losses in found[1:]:
        assert losses == pytest.approx(found[0], rel=1e-5)
    # The model reads 3, 4, 5, 6 and 7 tokens.
    assert longest[:2] == [[25] * 3, [35] * 3]
    assert all(max(sizes) <= 10 and len(sizes) > 2 * 3 for sizes in longest[2:])


async def test_training_stops_when_on_step_returns_false(model):
    seen = []

    def on_step(step, loss):
        seen.append((step, loss))
        return step < 3

    losses = await imitate(
        supervised(model, OPTIMIZER), SEGMENTS, steps=50, batch_size=2, seed=0, on_step=on_step
    )
    assert seen == list(enumerate(losses, start=1))
    assert len(losses) == 3


async def test_cancelling_makes_no_other_step(model):
    steps = []

    def on_step(step, loss):
        steps.append(step)
        return True

    running = asyncio.create_task(
        imitate(
            supervised(model, OPTIMIZER),
            SEGMENTS,
            steps=9_999,
            batch_size=1,
            seed=0,
            on_step=on_step,
        )
    )
    while len(steps) < 3:
        await asyncio.sleep(0.001)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    count = len(steps)
    await asyncio.sleep(0.1)
    assert len(steps) == count


async def test_nothing_to_imitate_is_refused(model):
    with pytest.raises(ValueError, match="no conversation to imitate"):
        await imitate(supervised(model, OPTIMIZER), [], steps=1, batch_size=1, seed=0)
