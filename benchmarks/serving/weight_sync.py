"""Time to send new weights to a vLLM server, and how exactly they arrive.

    python -m benchmarks.serving.weight_sync --python /path/to/vllm/bin/python

A tiny model and one of about 100 million parameters each get a server. The weights change fifty
times (tiny) or five times, and each time they are sent and verified. ``load`` is the time from
pause to resume; the other figures are the time to write the file, and the total including the
verification. Then the same is measured for a LoRA adapter, which is sent alone (``--lora RANK``; 0
skips it). On GPUs, ``--device cuda:1 --transfer nccl`` or ``--device cuda --transfer ipc`` measure
vLLM's own transfers. Writes ``results/weight_sync.json``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agents.completion import SamplingParams
from agents.serving import ManagedServer, Prober, WeightFolders
from agents.vllm import RENDEZVOUS, ServerConfig, Transfer, VLLMServerPolicy, VLLMServerProcess
from rl.learner.lora import adapter_config, add_adapter, trained_state
from rl.learner.model import score_tokens
from rl.run.folder import versions
from rl.settings.lora import LoraConfig

RESULTS = Path(__file__).parents[1] / "results" / "weight_sync.json"
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


@dataclass(frozen=True)
class Where:
    """Devices of both ends, and the transfer of weights between them."""

    device: str
    transfer: str

    @property
    def tolerance(self) -> float:
        """Largest allowed difference of log-probabilities; a GPU's kernels round differently."""
        return 1e-4 if self.device == "cpu" else 0.05

    def folders(self, adapter: dict[str, Any] | None) -> WeightFolders | Transfer:
        """What hands them over."""
        if self.transfer == "files":
            return WeightFolders(adapter=adapter)
        return Transfer(RENDEZVOUS[self.transfer], deadline_s=120)


async def measure(
    kind: str, updates: int, python: str, log: Path, rank: int, where: Where
) -> dict[str, object]:
    from rl.data.conversations import Conversation, Exchange
    from rl.runtime.tiny import train_tokenizer

    model = make_model(kind).to(where.device)

    async def score(
        token_ids: Sequence[int], temperature: float, supports: Sequence[Sequence[int]]
    ) -> Sequence[float]:
        return score_tokens(model, token_ids, temperature, supports)

    prober = Prober(
        score,
        model.config.vocab_size,
        sampling=SamplingParams(),
        tolerance=where.tolerance,
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
            cpu=where.device == "cpu",
            transfer="" if where.transfer == "files" else where.transfer,
            lora_rank=rank,
            lora_targets=tuple(adapter["target_modules"]) if adapter else (),
        )
        policy = VLLMServerPolicy(
            [ManagedServer(prober, runner=VLLMServerProcess(config))],
            where.folders(adapter),
            prober,
            context_window=WINDOW,
        )
        syncs = []
        try:
            await policy.open()
            await policy.load_weights(trained_state(model), 0)
            for version in range(1, updates + 1):
                with torch.no_grad():
                    for weight in trained_state(model).values():
                        weight.add_(torch.randn_like(weight) * (1e-2 if rank else 1e-3))
                await policy.load_weights(trained_state(model), version)
                syncs.append(policy.take_metrics())
        finally:
            await policy.close()
    row: dict[str, object] = {"parameters": model.num_parameters(), "updates": updates}
    row |= {"rank": rank, "bytes": sum(w.nbytes for w in trained_state(model).values())}
    return row | summary(syncs)


def summary(syncs: Sequence[Mapping[str, float]]) -> dict[str, object]:
    """Seconds of the parts of an update, and the largest difference from the learner's scores."""
    row: dict[str, object] = {}
    for name in ("sync/load_s", "sync/write_s", "sync/seconds"):
        values = [metrics[name] for metrics in syncs]
        row[name] = {"median": statistics.median(values), "best": min(values), "worst": max(values)}
    row["max_difference"] = max(metrics["sync/max_difference"] for metrics in syncs)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter that has vLLM")
    parser.add_argument("--lora", type=int, default=8, help="rank of the adapter; 0: none")
    parser.add_argument("--device", default="cpu", help="the learner's; cuda:1 with nccl")
    parser.add_argument("--transfer", default="files", choices=["files", *RENDEZVOUS])
    parser.add_argument("--out", type=Path, default=RESULTS)
    words = parser.parse_args()
    torch.set_num_threads(1)
    rows = {}
    cases = [("tiny", 50), ("100M", 5)]
    where = Where(words.device, words.transfer)
    adapters = [words.lora] if words.lora and words.transfer == "files" else []
    for rank in [0, *adapters]:
        for kind, updates in cases:
            name = f"{kind}, adapter" if rank else kind
            with tempfile.TemporaryDirectory() as logs:
                log = Path(logs) / "server.log"
                rows[name] = asyncio.run(measure(kind, updates, words.python, log, rank, where))
            print(name, json.dumps(rows[name]), flush=True)
    about = {**versions(), "device": words.device, "transfer": words.transfer}
    words.out.write_text(json.dumps({**about, "models": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
