"""Models with random weights in published shapes, and episodes of given lengths."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from agents.completion import Completion, FinishReason
from agents.segment import Segment
from benchmarks.gpu.figures import Setup
from rl.data.conversations import Conversation, Exchange
from rl.rollout.trajectory import Trajectory, TrajectoryGroup, Turn
from rl.runtime.tiny import train_tokenizer

SHAPES = {
    "0.6B": (1024, 3072, 28, 16, 8, 128, 151936, 40960),
    "4B": (2560, 9728, 36, 32, 8, 128, 151936, 40960),
    "small": (256, 512, 4, 4, 2, 64, 4096, 4096),
    "tiny": (64, 128, 2, 4, 2, 16, 512, 4096),
}
"""Width, inner width, layers, heads, key-value heads, width of a head, vocabulary and window of
Qwen3's published models, and of two small ones."""


def qwen3(size: str) -> Qwen3Config:
    """The configuration of a shape."""
    width, inner, layers, heads, kv_heads, head, vocabulary, window = SHAPES[size]
    return Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head,
        max_position_embeddings=window,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )


def make_model(size: str, setup: Setup, dtype: torch.dtype) -> PreTrainedModel:
    """A model with random weights, made on the device."""
    with torch.random.fork_rng(devices=[]), torch.device(setup.device):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(qwen3(size), dtype=dtype)
    return model.eval()


def model_folder(size: str, setup: Setup, texts: Sequence[tuple[str, str]] = ()) -> Path:
    """The folder of a model with random weights and a tokenizer, made by the first part to ask.

    Args:
        size: the shape; small setups get the tiny one.
        setup: the device on which the weights are drawn.
        texts: observations and actions from which the tokenizer is made; it has bytes without.
    """
    size = "tiny" if setup.small else size
    folder = setup.work / f"model-{size}-{len(texts)}"
    if (folder / "tokenizer.json").is_file():
        return folder
    exchanges = [Exchange(*text) for text in texts or [("Say what is 6 x 7.", "It is 42.")]]
    tokenizer = train_tokenizer([Conversation(tuple(exchanges))], 512 if texts else 261)
    model = make_model(size, setup, torch.float32 if setup.small else torch.bfloat16)
    for config in (model.config, model.generation_config):
        config.eos_token_id, config.pad_token_id = tokenizer.eos_token_id, tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    del model
    if setup.on_gpu:
        torch.cuda.empty_cache()
    return folder


def make_group(
    prompt: int, completions: Sequence[int], vocabulary: int, seed: int = 0, supports: int = 0
) -> TrajectoryGroup:
    """A group of single-turn episodes with one prompt and rewards that differ.

    Args:
        prompt: tokens of the prompt.
        completions: tokens of each completion.
        vocabulary: tokens are drawn below it.
        seed: seed of the tokens.
        supports: number of tokens in each sampling support; 0 for the whole vocabulary.
    """
    drawn = np.random.default_rng(seed)
    context = drawn.integers(0, vocabulary, prompt).tolist()
    members = []
    for member, count in enumerate(completions):
        ids = drawn.integers(0, vocabulary, count).tolist()
        kept = tuple([(x + i) % vocabulary for i in range(supports)] for x in ids)
        segment = Segment()
        segment.append_context(context, 0)
        logprobs = (-math.log(supports or vocabulary),) * count
        done = Completion(
            tuple(ids), logprobs, (0,) * count, FinishReason.STOP_TOKEN, kept if supports else None
        )
        segment.append_completion(done, 0)
        turn = Turn("", "", "stop_token", count, {"r": float(member % 2)})
        members.append(Trajectory("none", {}, 0, 0, member, [segment], [turn], terminated=True))
    return TrajectoryGroup(members)
