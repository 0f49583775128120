"""What a command asks of a model: its tokenizer, where it runs, and the type of its weights."""

from __future__ import annotations

import torch
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rl.config import ModelConfig
from rl.errors import UsageError


def load_tokenizer(path: str) -> PreTrainedTokenizerBase:
    """The model's tokenizer.

    Raises:
        UsageError: there is none.
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
