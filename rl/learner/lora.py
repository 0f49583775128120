"""Low-rank adapters (LoRA, Hu et al. 2021, arXiv 2106.09685), by PEFT.

PEFT replaces layers inside the model. The model's class stays the same, so code that calls the
model also calls the adapter. The base model's weights never change. A checkpoint is an adapter's
folder, which names the base model; transformers reads it if PEFT is installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedModel

from rl.learner.memory.linear import linear_layers, read_elsewhere
from rl.settings.lora import ADAPTER_CONFIG, LoraConfig, is_adapter

ADAPTER_WEIGHTS = "adapter_model.safetensors"
"""PEFT's name of an adapter's file."""
NOT_INSTALLED = "needs PEFT: pip install 'turnwise[lora]'"
_PREFIX = "base_model.model."
"""Prefix of each tensor's name in an adapter's file, from PEFT's wrapper around the model."""
logger = logging.getLogger(__name__)
_ADAPTER = "default"
"""PEFT's default name of an adapter. The names of tensors in an adapter's file lack it."""


def check_lora(settings: LoraConfig, model: str) -> None:
    """Check that an adapter can be trained, before the model is loaded.

    Raises:
        ValueError: PEFT is not installed, or the model is an adapter itself.
    """
    if not settings.rank:
        return
    if importlib.util.find_spec("peft") is None:
        raise ValueError(f"lora.rank ({settings.rank}) {NOT_INSTALLED}")
    if is_adapter(model):
        raise ValueError(
            f"model ({model}) is an adapter, and one adapter has no other beneath it: merge it "
            f"first (python -m rl.merge models={model} out=FOLDER) and give model=FOLDER/"
            "checkpoints/last"
        )


def add_adapter(model: PreTrainedModel, settings: LoraConfig, base: str, seed: int) -> None:
    """Add an adapter to ``model``, in place, and freeze all other weights.

    At first the adapter has no effect.

    The adapter is float32, whatever the model's type, because optimizer steps are small.

    Args:
        model: the loaded model.
        settings: the adapter's settings.
        base: folder or hub id of the model, which checkpoints name.
        seed: seed of the initial values of A; B starts at 0.

    Raises:
        ValueError: a target is not a linear layer of the model, or cannot be adapted.
    """
    from peft import LoraConfig as PeftLoraConfig
    from peft import inject_adapter_in_model
    from peft.tuners.tuners_utils import cast_adapter_dtype

    linear, targets = _ends(linear_layers(model)), _targets(model, settings)
    adapter = PeftLoraConfig(
        r=settings.rank,
        lora_alpha=settings.scale,
        target_modules=targets,
        task_type="CAUSAL_LM",
    )
    # PEFT initialises from torch's global generator, whose state is restored here.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        # All other weights are frozen. PEFT's function, not the model's method: a release of
        # transformers may refuse every published release of PEFT.
        inject_adapter_in_model(adapter, model, _ADAPTER)
    made = {name.split(".lora_A.")[0] for name, _ in model.named_parameters() if ".lora_A." in name}
    if made != (chosen := {name for name, end in linear.items() if end in targets}):
        raise ValueError(
            f"PEFT adapts other layers of {type(model).__name__} than were chosen, such as "
            f"{min(made ^ chosen)}: leave its name out of lora.targets"
        )
    cast_adapter_dtype(model, _ADAPTER)
    local = Path(base).expanduser()
    adapter.base_model_name_or_path = str(local.resolve()) if local.is_dir() else base
    model.eval()


def is_adapted(model: PreTrainedModel) -> bool:
    """Whether only an adapter of the model is trained."""
    return any(_is_adapters(name) for name, _ in model.named_parameters())


def trained_state(model: PreTrainedModel) -> dict[str, Tensor]:
    """The weights that training changes, by name.

    Without an adapter, this is the model's ``state_dict``. With an adapter, it is the matrices A
    and B, under their names in an adapter's file. The tensors are the model's own, not copies.
    """
    if not is_adapted(model):
        return dict(model.state_dict())
    return {
        _name_in_file(name): parameter.detach()
        for name, parameter in model.named_parameters()
        if _is_adapters(name)
    }


@torch.no_grad()
def load_trained_state(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> None:
    """Load into ``model`` the weights that :func:`trained_state` returned."""
    if not is_adapted(model):
        model.load_state_dict(weights)
        return
    for name, tensor in trained_state(model).items():
        tensor.copy_(weights[name])


def save_adapter(
    folder: Path, model: PreTrainedModel, weights: Mapping[str, Tensor] | None = None
) -> None:
    """Write the adapter of ``model``, or ``weights`` of it, into ``folder``, in PEFT's layout.

    PEFT's own function is not used, because it requests the base model's configuration from the
    hub each time.

    Raises:
        OSError, SafetensorError: the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    weights = trained_state(model) if weights is None else weights
    tensors = {name: w.cpu().contiguous() for name, w in weights.items()}
    save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
    config = json.dumps(adapter_config(model), indent=2, sort_keys=True)
    (folder / ADAPTER_CONFIG).write_text(config + "\n", encoding="utf-8")
    if model.generation_config is not None:
        model.generation_config.save_pretrained(folder)


def read_adapter(folder: Path, model: PreTrainedModel) -> dict[str, Tensor]:
    """The :func:`trained_state` of an adapted ``model`` that is saved in ``folder``.

    Raises:
        ValueError: the adapter cannot be read, or belongs to another model.
    """
    path = folder / ADAPTER_WEIGHTS
    weights = _read(path)
    shapes, found = _shapes(trained_state(model)), _shapes(weights)
    differs = next((n for n in {**shapes, **found} if shapes.get(n) != found.get(n)), None)
    if differs is not None:
        raise ValueError(f"{path} is the adapter of another model: it differs by {differs}")
    return weights


def adapter_config(model: PreTrainedModel) -> dict[str, Any] | None:
    """The content of ``adapter_config.json``, or None if there is no adapter."""
    if not is_adapted(model):
        return None
    configs: Any = model.peft_config
    config = configs[_ADAPTER].to_dict()
    return {key: sorted(v) if isinstance(v, set) else v for key, v in config.items()}


@contextlib.contextmanager
def without_adapter(model: PreTrainedModel) -> Iterator[None]:
    """Disable the adapter while the context lasts, so that ``model`` is exactly the base model.

    Do not train inside the context.
    """
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def base_of(path: str) -> str:
    """The base model that an adapter's folder names. Any other path is returned unchanged.

    Raises:
        ValueError: the adapter's folder names no base model.
    """
    if not is_adapter(path):
        return path
    config = Path(path).expanduser() / ADAPTER_CONFIG
    try:
        return str(json.loads(config.read_text(encoding="utf-8"))["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"model ({path}): {config} names no base model") from error


def merged(base: PreTrainedModel, folder: str) -> PreTrainedModel:
    """``base`` with the adapter in ``folder`` merged into its weights.

    Raises:
        ValueError: PEFT is not installed, or the adapter cannot be read, or belongs to another
            model.
    """
    if importlib.util.find_spec("peft") is None:
        raise ValueError(f"model ({folder}) is an adapter, which {NOT_INSTALLED}")
    from peft import (
        PeftConfig,
        get_peft_model,
        get_peft_model_state_dict,
        set_peft_model_state_dict,
    )

    home = Path(folder).expanduser()
    try:
        config = PeftConfig.from_pretrained(str(home))
        # PEFT draws initial values from torch's global generator before the saved ones are read. It
        # warns of what it reads in transformers, and of ties, which are undone here.
        with torch.random.fork_rng(devices=[]), warnings.catch_warnings(action="ignore"):
            adapted = get_peft_model(base, config)
            weights = _read(home / ADAPTER_WEIGHTS)
            if _shapes(trained_state(base)) == _shapes(weights):
                # PEFT renames what it reads, and Laguna's shared experts twice.
                load_trained_state(base, weights)
            else:
                names = set(set_peft_model_state_dict(adapted, weights).unexpected_keys)
                fresh = get_peft_model_state_dict(adapted, save_embedding_layers=False)
                if differs := sorted(names | (set(fresh) - set(weights))):
                    what = f"it is the adapter of another model: it differs by {differs[0]}"
                    raise ValueError(what)
            _untie(base)
            model: PreTrainedModel = adapted.merge_and_unload()
    except (OSError, TypeError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(
            f"model ({folder}) is an adapter that cannot be used ({reason[:300]})"
        ) from error
    head, embedding = model.get_output_embeddings(), model.get_input_embeddings()
    if head is not None and head.weight is not embedding.weight:
        model.config.get_text_config().tie_word_embeddings = False
        model.config.tie_word_embeddings = False
    return model


def _shapes(weights: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in weights.items()}


def _untie(model: PreTrainedModel) -> None:
    """Give a head of its own to a model whose adapter changes the head or the embedding alone."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [model.get_output_embeddings(), model.get_input_embeddings()]
    if not any(isinstance(layer, BaseTunerLayer) for layer in layers):
        return
    head, embedding = (getattr(layer, "base_layer", layer) for layer in layers)
    if head.weight is embedding.weight:
        head.weight = nn.Parameter(head.weight.detach().clone())


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def _is_adapters(name: str) -> bool:
    return ".lora_A." in name or ".lora_B." in name


def _name_in_file(name: str) -> str:
    return _PREFIX + name.replace(f".{_ADAPTER}.", ".")


def _targets(model: PreTrainedModel, settings: LoraConfig) -> list[str]:
    """Ends of the names of the layers that get an adapter, such as ``q_proj``."""
    linear = _ends(linear_layers(model))
    if not linear:
        raise ValueError(
            f"lora.rank ({settings.rank}) must be 0: {type(model).__name__} has no linear layer "
            "but its head"
        )
    known = set(linear.values())
    unfit = _unfit(model, known)
    for target in settings.targets:
        if target not in known:
            names = ", ".join(sorted(known))
            raise ValueError(f"lora.targets ({target}) must be among the linear layers: {names}")
        if target in unfit:
            raise ValueError(
                f"lora.targets ({target}) cannot be adapted in {type(model).__name__}: "
                f"{unfit[target]}; leave it out"
            )
    if settings.targets:
        return sorted(settings.targets)
    for reason in dict.fromkeys(unfit.values()):
        ends = sorted(end for end in unfit if unfit[end] == reason)
        count = sum(end in ends for end in linear.values())
        logger.warning("%d layers (%s) get no adapter: %s", count, ", ".join(ends), reason)
    if not (fit := sorted(known - set(unfit))):
        raise ValueError(
            f"lora.rank ({settings.rank}) must be 0: no linear layer of {type(model).__name__} can "
            f"be adapted ({next(iter(unfit.values()))})"
        )
    return fit


def _ends(names: Iterable[str]) -> dict[str, str]:
    """The end of the name by which PEFT finds each layer, by its whole name."""
    # A number alone would also be the number of a decoder layer.
    return {name: ".".join(name.split(".")[-2 if name[-1].isdigit() else -1 :]) for name in names}


def _unfit(model: PreTrainedModel, targets: Iterable[str]) -> dict[str, str]:
    """Why layers with these ends of names get no adapter."""
    from peft import LoraConfig as PeftLoraConfig
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    read = read_elsewhere(model)
    found = {end: read[name] for name, end in _ends(read).items()}
    # PEFT takes names that experts had in older releases of transformers for those of experts.
    config = PeftLoraConfig(target_modules=set(targets))
    convert_peft_config_for_transformers(config, model, None)
    experts = "PEFT would adapt the mixture's experts of this name instead"
    return found | {name: experts for name in targets if name not in (config.target_modules or ())}
