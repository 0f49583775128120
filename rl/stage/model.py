"""What a command asks of a model: its tokenizer, where it runs, and the type of its weights."""

from __future__ import annotations

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from agents.template_settings import set_template
from rl.config import ModelConfig
from rl.errors import UsageError
from rl.settings.chat import OWN_TEMPLATE, ChatConfig


def load_tokenizer(path: str, chat: ChatConfig = OWN_TEMPLATE) -> PreTrainedTokenizerBase:
    """The model's tokenizer, with the settings of its chat template written into it.

    Raises:
        UsageError: there is none, or it has no template to set.
    """
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path)
    except OSError as error:
        raise UsageError(
            f"model ({path}) has no tokenizer: {str(error).splitlines()[0]}"
        ) from error
    # Where its files are missing, transformers makes one without a vocabulary.
    if not tokenizer.encode("text", add_special_tokens=False):
        raise UsageError(f"model ({path}) has no tokenizer: save one into its folder")
    try:
        set_template(tokenizer, chat.source(), chat.arguments(), chat.prefill)
    except ValueError as error:
        raise UsageError(f"model ({path}): {error}") from error
    return tokenizer


def device_of(config: ModelConfig) -> torch.device:
    """The configured device; auto is the GPU where there is one.

    Raises:
        UsageError: torch knows no such device, or it is not here.
    """
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=config.device).device
    # Torch asserts that it was built for a device.
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"device ({config.device}) must be auto, cpu, cuda or cuda:N, and be present "
            f"({str(error).splitlines()[0]})"
        ) from error


def dtype_of(config: ModelConfig) -> torch.dtype:
    """The configured type of weights; auto is bfloat16 on a GPU and float32 elsewhere."""
    if config.dtype != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
    return torch.bfloat16 if device_of(config).type == "cuda" else torch.float32
