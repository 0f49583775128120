"""Checkpoints: folders in the Hugging Face layout, with the learner's state beside the weights.

``AutoModelForCausalLM.from_pretrained(folder)`` reads a checkpoint. The checkpoint of a model with
an adapter is an adapter's folder in PEFT's layout, which names the base model. A checkpoint appears
complete or not at all: its files are written to a hidden folder next to it and flushed to the disk,
and then the hidden folder is renamed.
"""

from __future__ import annotations

import copy
import os
import pickle
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl.errors import RunFailure
from rl.learner.lora import is_adapted, read_adapter, save_adapter
from rl.learner.model import load_model

TRAINER_STATE = "trainer_state.pt"
"""Name of the file beside the weights that :func:`load_trainer_state` reads."""
SHARDS = "learner"
"""Name of the folder with the optimizer's state, if several ranks saved it; else it is in
:data:`TRAINER_STATE`."""
_HIDDEN = (".tmp", ".old")
"""Endings of the names of two hidden folders next to a checkpoint: the folder that is being
written, and the folder that it replaces."""


def begin_checkpoint(folder: Path) -> Path:
    """Make the hidden folder of a checkpoint, into which ranks write their parts.

    :func:`save_checkpoint` completes it.

    Raises:
        RunFailure: it cannot be made.
    """
    partial, _ = _siblings(folder)
    with _reported(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        recover(folder)
        partial.mkdir()
    return partial


def save_checkpoint(
    folder: Path,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None = None,
    trainer_state: Mapping[str, Any] | None = None,
    weights: Callable[[], Mapping[str, Tensor]] | None = None,
) -> None:
    """Write ``folder``: weights, configuration, tokenizer and the trainer's state.

    Just before the new folder takes its name, an existing folder is renamed to a hidden folder that
    ends in ``.old``, which is then deleted. If the process dies, a hidden folder can remain.
    :func:`recover` and the next save to this folder remove it.

    Args:
        folder: the checkpoint. Missing parent folders are created.
        model: the model whose weights and configurations are saved.
        tokenizer: the tokenizer to save, or None for none.
        trainer_state: plain values and tensors, which may be nested, or None for no trainer state.
        weights: returns the model's complete :func:`~rl.learner.lora.trained_state`, if the model
            has only a part of each weight; the folder is then one of :func:`begin_checkpoint`. None
            for the model's own weights.

    Raises:
        RunFailure: the checkpoint cannot be written; an existing folder has not changed.
    """
    if weights is None:
        begin_checkpoint(folder)
    partial, previous = _siblings(folder)
    with _reported(folder):
        complete = None if weights is None else dict(weights())
        if is_adapted(model):
            save_adapter(partial, model, complete)
        else:
            # Before the call, which empties the dictionary.
            types = {x.dtype for x in (complete or {}).values() if x.is_floating_point()}
            # A few weights may be wider than the others; see model.kept_in_float32.
            dtype = min(types, key=lambda one: one.itemsize, default=model.dtype)
            model.save_pretrained(partial, state_dict=complete)
            if dtype != model.dtype:
                _name_type(partial, model, dtype)
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


def _name_type(folder: Path, model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Name the type of the written weights in the configuration: ranks keep theirs in another.

    Programs that read the weights in the configuration's type, as servers do, would use twice the
    memory.
    """
    config = copy.deepcopy(model.config)
    for part in (config, *(getattr(config, key, None) for key in config.sub_configs)):
        if part is not None:
            part.dtype = dtype
    config.save_pretrained(folder)


def recover(folder: Path) -> None:
    """Remove the hidden folders of a process that died while it saved ``folder``.

    If the process died between the two renames, the replaced folder gets its name back.
    """
    partial, previous = _siblings(folder)
    if previous.exists() and not folder.exists():
        previous.rename(folder)
    for left_over in (partial, previous):
        shutil.rmtree(left_over, ignore_errors=True)


def tidy(parent: Path, old: Sequence[Path]) -> None:
    """Delete the checkpoints ``old``, and :func:`recover` all checkpoints in ``parent``.

    A process that dies during the call leaves no partial checkpoint.
    """
    for path in sorted(parent.glob(".*")):
        if path.suffix in _HIDDEN:
            recover(parent / path.stem.removeprefix("."))
    for folder in old:
        partial, _ = _siblings(folder)
        folder.rename(partial)
        shutil.rmtree(partial, ignore_errors=True)


def load_trainer_state(folder: Path) -> dict[str, Any]:
    """The ``trainer_state`` that ``folder`` was saved with, with tensors on the CPU.

    Only plain values and tensors are read, so a checkpoint cannot run code.

    Raises:
        ValueError: the folder has no trainer state, or a damaged one.
    """
    path = folder / TRAINER_STATE
    if not path.is_file():
        raise ValueError(
            f"checkpoint ({folder}) has no {TRAINER_STATE}: give a folder that a run saved; to "
            f"start a new run from a model's weights, give it as the model instead"
        )
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} cannot be read: {reason}") from error
    return state


def read_trained_state(
    folder: Path, model: PreTrainedModel, dtype: torch.dtype
) -> dict[str, Tensor]:
    """The :func:`~rl.learner.lora.trained_state` of ``model`` that is saved in ``folder``.

    Args:
        folder: the checkpoint.
        model: the model, which is not changed.
        dtype: the type of the weights. An adapter has its own.

    Raises:
        ValueError: the weights cannot be read, or belong to another model.
    """
    if is_adapted(model):
        return read_adapter(folder, model)
    return load_model(folder, dtype=dtype).state_dict()


def _siblings(folder: Path) -> tuple[Path, Path]:
    """The two hidden folders next to a checkpoint: the new folder and the replaced folder."""
    partial, previous = (folder.with_name(f".{folder.name}{ending}") for ending in _HIDDEN)
    return partial, previous


@contextmanager
def _reported(folder: Path) -> Iterator[None]:
    """Remove what a failure left of a checkpoint, and raise it as one line.

    Raises:
        RunFailure: the disk is full or not writable.
    """
    try:
        yield
    except Exception as error:
        recover(folder)
        if not _about_writing(error):
            raise
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise RunFailure(
            f"checkpoint {folder} cannot be written: {reason}{_room(folder.parent)}"
        ) from error


def _about_writing(error: Exception) -> bool:
    """Whether a library's error means that the disk is full or not writable."""
    # tokenizers raises a plain Exception.
    return isinstance(error, OSError | SafetensorError | RuntimeError) or type(error) is Exception


def _room(folder: Path) -> str:
    """The disk's free space, for an error message; torch's own message does not state it."""
    try:
        return f" ({shutil.disk_usage(folder).free / 2**20:.1f} MiB are free there)"
    except OSError:
        return ""


def _flush(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
