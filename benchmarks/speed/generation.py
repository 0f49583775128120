"""Tokens per second of ``agents.local``, compared with ``model.generate``; one torch thread each.

    OMP_NUM_THREADS=1 python -m benchmarks.speed.generation [repeats]

Three workloads use the same 0.8M-parameter Qwen3 with random weights, at temperature 1:

- equal: 64 prompts, 128 new tokens each;
- ragged: 64 prompts, lognormal numbers of new tokens (mean 64, at most 256); ``generate`` continues
  until its longest row ends;
- multi_turn: 64 episodes of 3 to 5 turns of 20 to 80 new tokens, with tools of 20 ms between them;
  ``generate`` runs one turn of all episodes at a time and prefills the whole context again.

The two alternate, so that a busy machine slows both; CPU seconds exclude waiting. Prints one line
of JSON: tokens per second (median and best) of both, their ratios, the ratio of CPU seconds, and
the load of the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from agents.completion import SamplingParams
from agents.local import LocalPolicy

NUM_EPISODES = 64
PROMPT_TOKENS = 32
TOOL_S = 0.02
PAD = 256


@dataclass(frozen=True)
class Episode:
    """What one episode asks for, fixed beforehand so that both sides do the same work."""

    prompt: list[int]
    turns: list[int]
    """New tokens of each turn."""
    observations: list[list[int]]
    """What the tool answers after each turn but the last."""


def make_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=259,
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=PAD,
    )
    return Qwen3ForCausalLM(config).eval()


def make_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def make_work(kind: str) -> list[Episode]:
    rng = np.random.default_rng(0)

    def tokens(count: int) -> list[int]:
        return rng.integers(0, 256, count).tolist()

    if kind == "equal":
        turns = [[128]] * NUM_EPISODES
    elif kind == "ragged":
        sigma = 0.8
        drawn = rng.lognormal(np.log(64) - sigma**2 / 2, sigma, NUM_EPISODES)
        turns = [[int(n)] for n in np.clip(drawn, 1, 256)]
    else:
        turns = [rng.integers(20, 81, rng.integers(3, 6)).tolist() for _ in range(NUM_EPISODES)]
    return [
        Episode(tokens(PROMPT_TOKENS), t, [tokens(int(rng.integers(8, 33))) for _ in t[1:]])
        for t in turns
    ]


async def engine(policy: LocalPolicy, episodes: list[Episode], round_: int) -> None:
    async def play(index: int, episode: Episode) -> None:
        context = list(episode.prompt)
        name = f"{round_}/{index}"
        for turn, count in enumerate(episode.turns):
            params = SamplingParams(max_tokens=count)
            completion = await policy.generate(context, params, name)
            assert len(completion.token_ids) == count
            if turn + 1 < len(episode.turns):
                await asyncio.sleep(TOOL_S)
                context += [*completion.token_ids, *episode.observations[turn]]
        policy.end(name)

    policy.begin([f"{round_}/{index}" for index in range(len(episodes))])
    await asyncio.gather(*(play(i, e) for i, e in enumerate(episodes)))


@torch.inference_mode()
def rival(model: Qwen3ForCausalLM, episodes: list[Episode]) -> None:
    contexts = [list(e.prompt) for e in episodes]
    for turn in range(max(len(e.turns) for e in episodes)):
        active = [i for i, e in enumerate(episodes) if turn < len(e.turns)]
        width = max(len(contexts[i]) for i in active)
        ids = torch.full((len(active), width), PAD)
        mask = torch.zeros_like(ids)
        for row, i in enumerate(active):
            ids[row, width - len(contexts[i]) :] = torch.tensor(contexts[i])
            mask[row, width - len(contexts[i]) :] = 1
        counts = [episodes[i].turns[turn] for i in active]
        # top_k is 50 unless it is turned off.
        out = model.generate(
            input_ids=ids,
            attention_mask=mask,
            do_sample=True,
            top_k=0,
            max_new_tokens=max(counts),
            pad_token_id=PAD,
        )
        assert out.shape[1] == width + max(counts)
        more = [row for row, i in enumerate(active) if turn + 1 < len(episodes[i].turns)]
        if more:
            time.sleep(TOOL_S)
        for row in more:
            i = active[row]
            sampled = out[row, width : width + counts[row]].tolist()
            contexts[i] += [*sampled, *episodes[i].observations[turn]]


async def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    torch.set_num_threads(1)
    model = make_model()
    policy = LocalPolicy(model, make_tokenizer(), max_slots=NUM_EPISODES)
    result: dict[str, object] = {"repeats": repeats, "torch": torch.__version__}
    for kind in ("equal", "ragged", "multi_turn"):
        episodes = make_work(kind)
        num_tokens = sum(sum(e.turns) for e in episodes)
        ours, theirs, our_cpu, their_cpu = [], [], [], []
        for round_ in range(repeats + 1):
            start, start_cpu = time.perf_counter(), time.process_time()
            await engine(policy, episodes, round_)
            between, between_cpu = time.perf_counter(), time.process_time()
            rival(model, episodes)
            end, end_cpu = time.perf_counter(), time.process_time()
            # Each round starts from nothing, as after an update of the weights.
            await policy.load_weights(None, round_)
            if round_:  # the first one warms up
                ours.append(between - start)
                theirs.append(end - between)
                our_cpu.append(between_cpu - start_cpu)
                their_cpu.append(end_cpu - between_cpu)
        result[kind] = {
            "tokens": num_tokens,
            "local_median": round(num_tokens / statistics.median(ours)),
            "local_best": round(num_tokens / min(ours)),
            "generate_median": round(num_tokens / statistics.median(theirs)),
            "generate_best": round(num_tokens / min(theirs)),
            "ratio_of_medians": round(statistics.median(theirs) / statistics.median(ours), 2),
            "ratio_of_bests": round(min(theirs) / min(ours), 2),
            "ratio_of_cpu_medians": round(
                statistics.median(their_cpu) / statistics.median(our_cpu), 2
            ),
        }
    await policy.close()
    result["load_average"] = os.getloadavg()
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main())
