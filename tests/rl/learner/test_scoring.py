"""One root module computes everything, so that FSDP2 can shard it."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import copy
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import Qwen3Config, Qwen3ForCausalLM

from agents.segment import Segment
from rl.credit.batch import Batch
from rl.learner.scoring import ScoringModule
from rl.learner.settings import MemoryConfig

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
torch.manual_seed(0)
config = Qwen3Config(
    vocab_size=40, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
    num_attention_heads=2, num_key_value_heads=1, head_dim=8, tie_word_embeddings=True,
)
whole = ScoringModule(Qwen3ForCausalLM(config).eval(), with_values=True, own_trunk=True)
torch.nn.init.normal_(whole.value_head.weight)
sharded = copy.deepcopy(whole)
sharded.memory = MemoryConfig(activation_checkpointing="on")
mesh = init_device_mesh("cpu", (1,))
for trunk in (sharded.trunk, sharded.value_trunk):
    for layer in trunk.layers:
        fully_shard(layer, mesh=mesh)
fully_shard(sharded, mesh=mesh)

segment = Segment(
    token_ids=[1, 5, 7, 2, 9, 11], loss_mask=[0, 0, 1, 1, 0, 1],
    sampling_logprobs=[0.0] * 6, versions=[0] * 6, turn_ids=[0] * 6,
)
(micro,) = Batch.from_segments([segment]).micro_batches(100)
for module in (whole, sharded):
    scores = module(micro, 0.7)
    (scores.logprobs.sum() + 0.1 * scores.entropy.sum() + scores.values.square().sum()).backward()
    module.scores = [x.detach() for x in scores]
assert all(torch.equal(a, b) for a, b in zip(whole.scores, sharded.scores))
named = dict(whole.named_parameters())
for name, parameter in sharded.named_parameters():
    expected, found = named[name].grad, parameter.grad
    assert (expected is None) == (found is None), name
    if found is not None:
        torch.testing.assert_close(found.full_tensor(), expected, rtol=1e-6, atol=1e-7)
assert type(next(sharded.parameters())).__name__ == "DTensor"
dist.destroy_process_group()
"""


def test_sharded_and_checkpointed_gradients_are_those_of_the_whole_module(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "meeting")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
