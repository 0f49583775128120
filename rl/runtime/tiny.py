"""``model=tiny``: a small Qwen3 and its tokenizer, created from an environment's own text.

No weights are downloaded. Short supervised training on imperfect demonstrations is the warm start,
from which the model also learns the demonstrator's errors. Reinforcement learning then improves it.
The model is created once and cached by a hash of everything that it depends on.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

import envs
from agents.renderer import Renderer
from agents.segment import NOT_SAMPLED, Segment
from agents.torch_thread import TorchThread
from envs.datasets import SUFFIXES, name_of
from envs.env import EnvOptions
from envs.mixture.parts import MixOptions
from envs.user_files import short_name, source_files
from rl.data.conversations import Conversation
from rl.data.demonstrations import demonstrate
from rl.files import turnwise_cache, writing
from rl.learner.settings import OptimizerConfig
from rl.run.process.activity import Count
from rl.runtime.imitation import imitate, supervised
from rl.settings.groups import TinyRecipe
from tools.references import source_of

CHAT_TEMPLATE = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
WHOLE_TEXT_EVERY = 5
"""Every Nth demonstration trains on all tokens, including those that the demonstrator only read."""
SPECIAL_TOKENS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")


async def make_tiny(
    env_id: str,
    options: EnvOptions,
    services: Mapping[str, Any],
    *,
    seed: int,
    recipe: TinyRecipe,
    report: Callable[[str], None],
    thread: TorchThread | None = None,
    count: Count = lambda *_: None,
) -> Path:
    """The folder of the tiny model for an environment. The model is created unless it is cached.

    Args:
        env_id: the environment's full id.
        options: the environment's training options. Demonstrations come from their split.
        services: the environment's services.
        seed: seed of the demonstrations, the initial weights and the order of imitation.
        recipe: size and warm start.
        report: called with a line for the user.
        thread: the thread that computes the warm start, or None for a new one that uses one core.
        count: called at each demonstration and step.

    Raises:
        NoDemonstrations: the environment has no demonstrator to imitate.
        UsageError: a demonstration exceeds the recipe's window.
        RunFailure: the cache cannot be written.
    """
    folder = cache_folder() / _key(env_id, options, seed, recipe)
    if (folder / "config.json").is_file():
        report(f"model=tiny: warm start found in {folder}")
        return folder
    with writing(folder.parent):
        folder.parent.mkdir(parents=True, exist_ok=True)
    tasks = range(min(recipe.demonstrations, len(envs.make_from(env_id, options, services).tasks)))
    report(f"model=tiny: {len(tasks)} demonstrations by the environment's imperfect author")
    conversations = await demonstrate(env_id, options, services, tasks, seed, count=count)
    tokenizer = train_tokenizer(conversations, recipe.vocab_size)

    model = new_model(tokenizer, recipe, seed)
    optimizer = OptimizerConfig(
        lr=recipe.lr, warmup_steps=recipe.warmup_steps, decay_steps=recipe.steps
    )
    losses = await imitate(
        supervised(model, optimizer),
        _to_learn(conversations, Renderer(tokenizer)),
        steps=recipe.steps,
        batch_size=recipe.batch_size,
        seed=seed,
        on_step=_after_each(count, recipe.steps),
        thread=thread,
    )
    report(
        f"model=tiny: {sum(p.numel() for p in model.parameters()):,} parameters, "
        f"{recipe.steps} supervised steps, loss {losses[0]:.2f} to {losses[-1]:.2f}"
    )
    with writing(folder):
        _publish(folder, model, tokenizer)
    return folder


def _after_each(count: Count, steps: int) -> Callable[[int, float], bool]:
    """A callback that counts each step and lets the training continue."""

    def on_step(step: int, loss: float) -> bool:
        count("warm start steps", step, steps)
        return True

    return on_step


def cache_folder() -> Path:
    """The folder ``tiny`` of turnwise's cache."""
    return turnwise_cache() / "tiny"


def train_tokenizer(
    conversations: Iterable[Conversation], vocab_size: int
) -> PreTrainedTokenizerBase:
    """A byte-level BPE tokenizer with ``vocab_size`` entries and one token per digit."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = (text for conversation in conversations for text in conversation.texts())
    tokenizer.train_from_iterator(texts, trainer)
    wrapped = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|pad|>"
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def new_model(
    tokenizer: PreTrainedTokenizerBase, recipe: TinyRecipe, seed: int
) -> Qwen3ForCausalLM:
    """A Qwen3 of the recipe's size with random weights."""
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_kv_heads,
        head_dim=recipe.hidden_size // recipe.num_heads,
        max_position_embeddings=recipe.context_length,
        # The usual 0.02 suits wide models. At this width, many seeds with 0.02 do not learn within
        # the warm start to copy a number from the task into the answer.
        initializer_range=recipe.hidden_size**-0.5,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    # Transformers initialises from torch's global generator, which fork_rng restores.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


def _to_learn(conversations: Sequence[Conversation], renderer: Renderer) -> list[Segment]:
    """The conversations as segments, most of which train only the demonstrator's words.

    A few segments also train the text that the demonstrator read. The model was never pretrained,
    and this text teaches it to copy, because passages repeat queries and queries repeat questions.
    But most of this text is unpredictable. If every segment trained it, it would outweigh the
    demonstrator's words.
    """
    segments = [conversation.to_segment(renderer) for conversation in conversations]
    return [
        segment if index % WHOLE_TEXT_EVERY else _whole_text(segment)
        for index, segment in enumerate(segments)
    ]


def _whole_text(segment: Segment) -> Segment:
    """The same text with every token trained, not only the demonstrator's words."""
    count = len(segment)
    return Segment(
        token_ids=segment.token_ids,
        loss_mask=[0] + [1] * (count - 1),
        sampling_logprobs=segment.sampling_logprobs,
        versions=[NOT_SAMPLED] + [0] * (count - 1),
        turn_ids=segment.turn_ids,
    )


def _key(env_id: str, options: EnvOptions, seed: int, recipe: TinyRecipe) -> str:
    """A hash of everything on which the model depends, such as the environment's source."""
    content = {
        "env": env_id,
        "options": asdict(options),
        "made_of": [_made_of(*part) for part in _parts(env_id, options)],
        "seed": seed,
        "recipe": asdict(recipe),
        "template": CHAT_TEMPLATE,
        "whole_text_every": WHOLE_TEXT_EVERY,
        "versions": [torch.__version__, transformers.__version__],
    }
    digest = hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode())
    return f"{short_name(env_id)}-{digest.hexdigest()[:16]}"


def _parts(env_id: str, options: EnvOptions) -> list[tuple[str, EnvOptions]]:
    """The environment with its options and, if it is a mixture, each part with its options."""
    inner = options.parts() if isinstance(options, MixOptions) else ()
    return [(env_id, options), *((part.env_id, part.options) for part in inner)]


def _made_of(env_id: str, options: EnvOptions) -> tuple[dict[str, str], dict[str, str]]:
    """An environment's source, and the hashes of the files that it reads."""
    files = source_files(env_id, envs.env_type(env_id))
    # Code without a file cannot be compared: its model is created again each time.
    unknown = {"": secrets.token_hex()} if files is None else {}
    sources = {p.name: p.read_text(encoding="utf-8") for p in files or []}
    return sources | unknown, _data_hashes(options)


def _data_hashes(options: EnvOptions) -> dict[str, str]:
    """The hash of each data file that the environment's options name, directly or by a folder.

    A function (``agent.py:play``) stands for its file. Rows are part of the options themselves. If
    an option's value, such as "code", happens to name a folder, only data files in this folder
    count.
    """
    common = {field.name for field in fields(EnvOptions)}
    texts = {k: v for k, v in asdict(options).items() if k not in common and isinstance(v, str)}
    hashes = {}
    for key, value in texts.items():
        if name_of(value) != value:
            continue
        path = Path(value).expanduser()
        source = source_of(value)
        for file in sorted(path.rglob("*")) if value and path.is_dir() else [source or path]:
            if file.is_file() and (file == source or file.name.endswith(SUFFIXES)):
                with file.open("rb") as opened:
                    hashes[f"{key}/{file}"] = hashlib.file_digest(opened, "sha256").hexdigest()
    return hashes


def _publish(folder: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerBase) -> None:
    """Write the folder atomically. Another run may create the same folder at the same time."""
    partial = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    try:
        partial.rename(folder)
    except OSError:
        # Another run created the same model meanwhile; both are equal.
        shutil.rmtree(partial)
