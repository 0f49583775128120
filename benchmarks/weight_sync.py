"""How long new weights take to a vLLM server, and how exactly they arrive.

    python -m benchmarks.weight_sync --python /path/to/vllm/bin/python

For a tiny model and one of about 100 million parameters: a server is started, the weights change
fifty (tiny) or five times, and each time are handed over and proved. Seconds are from pause to
resume (``load``), those of writing the file, and of everything, the proof included. Then once more
with an adapter (``--lora RANK``; 0: not), which is handed over alone.
Writes ``results/weight_sync.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agents.completion import SamplingParams
from agents.vllm import Member, Prober, ServerConfig, VLLMServerPolicy, WeightFolders
from rl.learner.lora import adapter_config, add_adapter, trained_state
from rl.learner.model import score_tokens
from rl.run.folder import versions
from rl.settings.lora import LoraConfig

RESULTS = Path(__file__).parent / "results" / "weight_sync.json"
WINDOW = 256


def make_model(kind: str, window: int = WINDOW) -> Qwen3ForCausalLM:
    shape = {"tiny": (96, 3, 3, 1, 512), "100M": (768, 12, 12, 4, 32000)}[kind]
    width, layers, heads, kv_heads, vocab = shape
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=width * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=width // heads,
        max_position_embeddings=window,
        tie_word_embeddings=True,
    )
    return Qwen3ForCausalLM(config).eval()


async def measure(
    kind: str, updates: int, python: str, log: Path, rank: int = 0
) -> dict[str, object]:
    from rl.stage.tiny import train_tokenizer
    from rl.texts.conversations import Conversation, Exchange

    model = make_model(kind)
    prober = Prober(
        partial(score_tokens, model),
        model.config.vocab_size,
        sampling=SamplingParams(),
        tolerance=1e-4,
    )
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        texts = Conversation((Exchange("Say what is 6 x 7.", "It is 42, I think."),))
        train_tokenizer([texts], 261).save_pretrained(folder)
        if rank:
            add_adapter(model, LoraConfig(rank=rank), folder, seed=0)
        adapter = adapter_config(model)
        config = ServerConfig(
            model=folder,
            context_window=WINDOW,
            dtype="float32",
            python=python,
            log=log,
            lora_rank=rank,
            lora_targets=tuple(adapter["target_modules"]) if adapter else (),
        )
        folders = WeightFolders(adapter=adapter)
        policy = VLLMServerPolicy(
            [Member(prober, config=config)], folders, prober, context_window=WINDOW
        )
        told = []
        try:
            await policy.open()
            await policy.load_weights(trained_state(model), 0)
            for version in range(1, updates + 1):
                with torch.no_grad():
                    for weight in trained_state(model).values():
                        weight.add_(torch.randn_like(weight) * (1e-2 if rank else 1e-3))
                await policy.load_weights(trained_state(model), version)
                told.append(policy.take_metrics())
            assert folders.newest is not None
            num_bytes = sum(path.stat().st_size for path in folders.newest.iterdir())
        finally:
            await policy.close()
    row: dict[str, object] = {"parameters": model.num_parameters(), "updates": updates}
    row |= {"rank": rank, "bytes": num_bytes}
    for name in ("sync/load_s", "sync/write_s", "sync/seconds"):
        values = [metrics[name] for metrics in told]
        row[name] = {"median": statistics.median(values), "best": min(values), "worst": max(values)}
    row["max_difference"] = max(metrics["sync/max_difference"] for metrics in told)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter that has vLLM")
    parser.add_argument("--lora", type=int, default=8, help="rank of the adapter; 0: none")
    parser.add_argument("--out", type=Path, default=RESULTS)
    words = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    cases = [("tiny", 50), ("100M", 5)]
    for rank in [0, words.lora] if words.lora else [0]:
        for kind, updates in cases:
            name = f"{kind}, adapter" if rank else kind
            with tempfile.TemporaryDirectory() as logs:
                log = Path(logs) / "server.log"
                rows[name] = asyncio.run(measure(kind, updates, words.python, log, rank))
            print(name, json.dumps(rows[name]), flush=True)
    words.out.write_text(json.dumps({**versions(), "models": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
