"""Checkpoints: a folder in the Hugging Face layout, with the learner's state beside the weights.

``AutoModelForCausalLM.from_pretrained(folder)`` reads one. It appears under its name complete or
not at all: it is written to a hidden sibling, flushed to the disk, and renamed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

TRAINER_STATE = "trainer_state.pt"
"""The file beside the weights: what :func:`load_trainer_state` returns."""


def save_checkpoint(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    trainer_state: Mapping[str, Any] | None = None,
) -> None:
    """Write ``folder``: weights, configuration, tokenizer and the trainer's state.

    A folder of that name is moved to a hidden sibling ending in ``.old`` just before the new one
    takes its name, and is deleted after. A process that dies leaves a hidden sibling behind, which
    the next save of this name removes.

    Args:
        folder: the checkpoint; its parents are made.
        model: its weights, configuration and generation configuration.
        tokenizer: its files; None: none.
        trainer_state: plain values and tensors, nested at will; None: no trainer state.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.tmp")
    previous = folder.with_name(f".{folder.name}.old")
    for left_over in (partial, previous):
        shutil.rmtree(left_over, ignore_errors=True)
    model.save_pretrained(partial)
    if tokenizer is not None:
        tokenizer.save_pretrained(partial)
    if trainer_state is not None:
        torch.save(dict(trainer_state), partial / TRAINER_STATE)
    for path in (*partial.rglob("*"), partial):
        _flush(path)
    if folder.exists():
        folder.rename(previous)
    partial.rename(folder)
    _flush(folder.parent)
    shutil.rmtree(previous, ignore_errors=True)


def load_trainer_state(folder: Path) -> dict[str, Any]:
    """The ``trainer_state`` that ``folder`` was saved with, its tensors on the CPU.

    Only plain values and tensors are read: a checkpoint cannot run code.

    Raises:
        ValueError: the folder has no trainer state.
    """
    path = folder / TRAINER_STATE
    if not path.is_file():
        raise ValueError(
            f"checkpoint ({folder}) has no {TRAINER_STATE}: give a folder that a run saved; to "
            f"start a new run from a model's weights, give it as the model instead"
        )
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state


def _flush(path: Path) -> None:
    """Have the system write a file or a folder's entries to the disk now."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
