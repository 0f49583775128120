#!/usr/bin/env bash
# An adapter of PEFT 0.21.2 on Jamba's `dt_proj` computes nothing while it is trained, and something
# once it is merged: transformers 5.24.0 multiplies with `dt_proj.weight` itself and never calls the
# layer. PEFT adds the adapter without a word; the loss does not depend on it.
# `target_modules="all-linear"` includes the layer. Seen with torch 2.13.0 on a CPU, Python 3.11:
#   before merging: largest change of a logit 0.0; the loss has a gradient for the 4 matrices: False
#   after merging: largest change of a logit above 1e-5
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0
"$work/venv/bin/pip" install --quiet transformers==5.24.0 peft==0.21.2
"$work/venv/bin/python" - <<'PY'
import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import JambaConfig, JambaForCausalLM

torch.manual_seed(0)
config = JambaConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=3,
    num_attention_heads=2,
    num_key_value_heads=2,
    num_experts=2,
    mamba_d_state=8,
    mamba_dt_rank=4,
    attn_layer_period=2,
    attn_layer_offset=1,
)
model = JambaForCausalLM(config).eval()
ids = torch.arange(20)[None]
before = model(ids, use_cache=False).logits.detach()
tuned = get_peft_model(model, LoraConfig(r=4, target_modules=["dt_proj"])).eval()
matrices = [(n, p) for n, p in tuned.named_parameters() if p.requires_grad]
with torch.no_grad():
    for _, matrix in matrices:
        matrix.copy_(torch.randn_like(matrix))
loss = tuned(ids, labels=ids, use_cache=False).loss
with torch.no_grad():
    apart = (tuned(ids, use_cache=False).logits - before).abs().max().item()
    merged = tuned.merge_and_unload()
    together = (merged(ids, use_cache=False).logits - before).abs().max().item()
print(f"before merging: largest change of a logit {apart}; the loss has a gradient for the "
      f"{len(matrices)} matrices: {loss.requires_grad}")
print(f"after merging: largest change of a logit {together:.2g}")
seen = (apart, loss.requires_grad, len(matrices), together > 1e-5)
sys.exit(seen != (0.0, False, 4, True))
PY
