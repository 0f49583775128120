"""``python -m rl.merge models=LONG,SHORT out=FOLDER``: the weighted average of models' weights.

If one of the models is an adapter, its base model with the adapter added is averaged.
``models=ADAPTER`` alone therefore writes a model that needs no PEFT.

Kimi k1.5 (arXiv 2501.12599, section 2.4) averages a model that thinks long and a model that thinks
briefly, without training.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from rl.errors import UsageError
from rl.files import claimed_folder
from rl.run.process.command import answer, run_command
from rl.settings.lora import is_adapter
from rl.settings.models import find_model
from rl.settings.parsing.from_python import from_python

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_TOLERANCE = 1e-6


@from_python
@dataclass(frozen=True, kw_only=True)
class MergeConfig:
    """Average the weights of models of one architecture, or add an adapter to its base model's."""

    models: tuple[str, ...]
    """Two or more models, separated by commas, each a Hugging Face id or the folder of a model or
    run; or one adapter's folder."""
    weights: tuple[float, ...] = ()
    """Weights of the models, which sum to 1; empty for equal weights."""
    out: str
    """The output folder; the model is saved under checkpoints/last."""
    dry_run: bool = False
    """Print the resolved configuration and stop."""

    def __post_init__(self) -> None:
        if len(self.models) < 2 and not any(map(is_adapter, self.models)):
            shown = ", ".join(self.models)
            raise ValueError(f"models ({shown}) must be two or more, or an adapter's folder")
        if not self.weights:
            return
        shown = f"weights ({', '.join(map(str, self.weights))})"
        if len(self.weights) != len(self.models):
            raise ValueError(f"{shown} must be as many as models, {len(self.models)}")
        # Written so that nan fails.
        if not abs(math.fsum(self.weights) - 1) <= _TOLERANCE:
            raise ValueError(f"{shown} must add up to 1")

    @property
    def shares(self) -> tuple[float, ...]:
        """The weight of each model."""
        return self.weights or (1 / len(self.models),) * len(self.models)


def merge(config: MergeConfig) -> dict[str, object]:
    """Average the models, and save the result with the type and the tokenizer of the first.

    Returns:
        The result's folder, the models and their weights.

    Raises:
        UsageError: a model cannot be loaded, two differ in architecture or tokenizer, or the folder
            holds a model already.
        RunFailure: the result cannot be written.
    """
    config = replace(config, models=tuple(find_model(m) for m in config.models))
    from rl.learner.checkpoint import save_checkpoint

    folder = Path(config.out).expanduser()
    with claimed_folder(folder, ("checkpoints/last",)):
        model, tokenizer = _average(config)
    saved = folder / "checkpoints" / "last"
    save_checkpoint(saved, model, tokenizer)
    return {"model": str(saved), "models": list(config.models), "weights": list(config.shares)}


def _average(config: MergeConfig) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The weighted mean of the models, and the tokenizer of the first model.

    Raises:
        UsageError: a model cannot be loaded, or two differ in architecture or tokenizer.
    """
    import torch
    from transformers import AutoConfig
    from transformers.utils import logging as transformers_logging

    from rl.learner.lora import base_of

    transformers_logging.disable_progress_bar()
    model, tokenizer = _load(config.models[0])
    first = model.state_dict()
    total = {
        name: config.shares[0] * values.double()
        for name, values in first.items()
        if values.is_floating_point()
    }
    for path, share in zip(config.models[1:], config.shares[1:], strict=True):
        other, others_tokenizer = _load(path)
        _same_vocabulary(config.models[0], tokenizer, path, others_tokenizer)
        theirs = other.state_dict()
        _same_architecture(config.models[0], first, path, theirs)
        for name, values in total.items():
            values.add_(theirs[name].double(), alpha=share)
    with torch.no_grad():
        for name, values in total.items():
            first[name].copy_(values)
    base = base_of(config.models[0])
    dtype: torch.dtype = AutoConfig.from_pretrained(base).dtype or torch.float32
    model.to(dtype=dtype)  # type: ignore[call-arg]
    return model, tokenizer


def _load(path: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    import torch

    from rl.learner.model import load_model
    from rl.runtime.model import load_tokenizer

    try:
        return load_model(path, dtype=torch.float32), load_tokenizer(path)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _same_architecture(
    path: str,
    first: dict[str, torch.Tensor],
    other_path: str,
    other: dict[str, torch.Tensor],
) -> None:
    """Check that the weights of two models have the same names and shapes."""
    shapes = {name: tuple(values.shape) for name, values in first.items()}
    others = {name: tuple(values.shape) for name, values in other.items()}
    differs = next((n for n in {**shapes, **others} if shapes.get(n) != others.get(n)), None)
    if differs is not None:
        raise UsageError(
            f"models ({path}, {other_path}) differ in architecture: {differs} is "
            f"{shapes.get(differs, 'absent')} in the first and {others.get(differs, 'absent')} in "
            f"the other; only models of one architecture can be averaged"
        )


def _same_vocabulary(
    path: str,
    tokenizer: PreTrainedTokenizerBase,
    other_path: str,
    other: PreTrainedTokenizerBase,
) -> None:
    """Check that two models have the same vocabulary."""
    if tokenizer.get_vocab() != other.get_vocab():
        raise UsageError(
            f"models ({path}, {other_path}) have different tokenizers: only models with one "
            f"tokenizer can be averaged"
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command("rl.merge", MergeConfig, {}, _run, argv)


def _run(config: MergeConfig) -> int:
    return answer(merge(config))


if __name__ == "__main__":
    sys.exit(main())
