"""Loads a model's tokenizer, and selects its device and the type of its weights."""

from __future__ import annotations

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from agents.template_settings import set_template
from rl.errors import UsageError
from rl.settings.chat import OWN_TEMPLATE, ChatConfig
from rl.settings.run import ModelConfig, RunConfig


def load_tokenizer(path: str, chat: ChatConfig = OWN_TEMPLATE) -> PreTrainedTokenizerBase:
    """Load the model's tokenizer and apply the settings of the chat template.

    Raises:
        UsageError: there is no tokenizer, or its template cannot be set.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path)
    except OSError as error:
        raise UsageError(
            f"model ({path}) has no tokenizer: {str(error).splitlines()[0]}"
        ) from error
    # Without its files, transformers creates a tokenizer without a vocabulary.
    if not tokenizer.encode("text", add_special_tokens=False):
        raise UsageError(f"model ({path}) has no tokenizer: save one into its folder")
    try:
        set_template(tokenizer, chat.source(), chat.arguments(), chat.prefill)
    except ValueError as error:
        raise UsageError(f"model ({path}): {error}") from error
    return tokenizer


def cores_of_learner(config: RunConfig, own_weights: bool) -> int:
    """Number of cores for the learner. A policy that samples at the same time gets the rest."""
    cores = config.num_threads
    return cores - cores // 2 if own_weights else cores


def device_of(config: ModelConfig) -> torch.device:
    """The configured device. "auto" is the GPU if there is one, otherwise the CPU.

    Raises:
        UsageError: torch does not know the device, or this machine lacks it.
    """
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=config.device).device
    # torch raises AssertionError if it was built without support for a device.
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"device ({config.device}) must be auto, cpu, cuda or cuda:N, and be present "
            f"({str(error).splitlines()[0]})"
        ) from error


def dtype_of(config: ModelConfig) -> torch.dtype:
    """The configured type of weights. "auto" is bfloat16 on a GPU and float32 elsewhere."""
    if config.dtype != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
    return torch.bfloat16 if device_of(config).type == "cuda" else torch.float32
