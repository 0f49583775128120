#!/usr/bin/env bash
# An adapter on the shared experts of Laguna that PEFT 0.21.2 writes is not read again by PEFT: its
# tensors of `shared_experts` are reported as missing and keep their initial values, so the adapter
# has no effect there. transformers 5.24.0 renames `mlp.shared_expert.` to `mlp.shared_experts.` in
# Laguna's weights, as a pattern whose dot matches any letter; PEFT applies it to names that are
# renamed already, which become `shared_experts..down_proj`.
# Seen with torch 2.13.0 on a CPU, Python 3.11:
#   in the file: ...layers.1.mlp.shared_experts.down_proj.lora_A.weight
#   missing after loading: 2 tensors of shared_experts; largest difference of a logit above 0.01
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet torch==2.13.0
"$work/venv/bin/pip" install --quiet transformers==5.24.0 peft==0.21.2
"$work/venv/bin/python" - "$work" <<'PY'
import sys
import warnings

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, LagunaConfig

folder = sys.argv[1]
torch.manual_seed(0)
config = LagunaConfig(
    vocab_size=96,
    hidden_size=32,
    intermediate_size=48,
    moe_intermediate_size=24,
    shared_expert_intermediate_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
    num_experts=4,
    num_experts_per_tok=2,
    pad_token_id=0,
)
base = AutoModelForCausalLM.from_config(config).eval()
base.save_pretrained(f"{folder}/base")
tuned = get_peft_model(base, LoraConfig(r=4, target_modules=["down_proj"])).eval()
with torch.no_grad():
    for name, matrix in tuned.named_parameters():
        if "lora_B" in name:
            matrix.copy_(torch.randn_like(matrix))
ids = torch.arange(3, 20)[None]
trained = tuned(ids).logits.detach()
tuned.save_pretrained(f"{folder}/adapter")
written = [name for name in load_file(f"{folder}/adapter/adapter_model.safetensors")
           if "shared_experts" in name]
again = AutoModelForCausalLM.from_pretrained(f"{folder}/base")
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    loaded = PeftModel.from_pretrained(again, f"{folder}/adapter").eval()
missing = sum(str(one.message).count("shared_experts") for one in said
              if "missing adapter keys" in str(one.message))
off = (loaded(ids).logits.detach() - trained).abs().max().item()
print(f"in the file: {written}")
print(f"missing after loading: {missing} tensors of shared_experts; largest difference of a logit "
      f"{off:.2g}")
seen = (len(written), any(".." in name for name in written), missing, off > 0.01)
sys.exit(seen != (2, False, 2, True))
PY
