"""The policy's model: loads it, scores with it, and measures how rounding changes its scores."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion

from agents.local.forward.cache_names import cache_name
from rl.credit.logprobs import Support
from rl.learner.lora import base_of, merged

Infer = Callable[[Mapping[str, Any]], Any]
"""Computes a model's output from the arguments of its forward pass, by name."""
LEAST_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}
"""Smallest tolerance in nats for weights of the types with many digits."""
COARSE_TOLERANCE = 0.25
"""Smallest tolerance in nats for weights of all other types, which have few digits, and whose
kernels round differently."""
COPIES = 6
"""Number of models for which a rank's GPU needs room before they are divided: the policy, its
reference, the critic's trunk, two of token rewards, and the room to divide them."""
NOISE_MARGIN, SMALL_NOISE_MARGIN, SMALL_TOLERANCE = 4, 12, 1e-3
"""The tolerance divided by the measured noise; the same where the tolerance then is at most
``SMALL_TOLERANCE``, which most stale layers exceed after one update."""
NOISE_ROWS, NOISE_TOKENS = 4, 48
"""Number and length of the random sequences on which noise is measured. With equal seeds, the first
equals the prompt with which servers are probed."""


def load_model(
    path: str | Path, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """A causal language model in evaluation mode, from a folder or a hub id.

    Training keeps evaluation mode: with dropout, the learner's log-probabilities would differ from
    those of the sampler.

    Args:
        path: a folder in the Hugging Face layout, or a hub id. For an adapter's folder, the base
            model is loaded and the adapter merged into it.
        device: device of the weights.
        dtype: type of the weights, except those that transformers keeps in float32, as vLLM does:
            routers and the frequencies of rotary positions. The optimizer keeps float32 copies of
            narrower weights.

    Raises:
        ValueError: there is no model at the path, the model is a classifier (such as a reward
            model), or its files lack weights, so that these would be random.
    """
    model = _from_folder_or_hub(str(path), dtype)
    # Without the type, which would round what the loader kept in float32.
    model.to(device=torch.device(device))  # type: ignore[call-arg]
    model.eval()
    return model


def kept_in_float32(module: nn.Module, dtype: torch.dtype) -> set[str]:
    """Names of the weights in a module that its models keep in float32 beside weights of ``dtype``.

    Rounded, they would change too much: the router of a mixture would choose other experts.
    """
    if dtype.itemsize >= torch.float32.itemsize:
        return set()
    models = [part for part in module.modules() if isinstance(part, PreTrainedModel)]
    names = {name for part in models for name in part._keep_in_fp32_modules_strict or ()}
    return {name for name in module.state_dict() if any(part in name for part in names)}


def _from_folder_or_hub(path: str, dtype: torch.dtype) -> PreTrainedModel:
    base = base_of(path)
    if base == path:
        return _from_pretrained(path, dtype)
    try:
        model = _from_pretrained(base, dtype)
    except ValueError as error:
        raise ValueError(f"model ({path}) is an adapter, whose base {error}") from error
    return merged(model, path)


def move_if_small(model: PreTrainedModel, device: str) -> None:
    """Move a rank's whole model from the host to its GPU, if it and its copies fit there.

    The model is tried out and copied before it is divided, which takes long on the host. A larger
    model stays there, and its layers move one by one when they are divided.
    """
    place = torch.device(device)
    if place.type != "cuda":
        return
    size = sum(parameter.nbytes for parameter in model.parameters())
    free, _ = torch.cuda.mem_get_info(place)
    if size * COPIES < free:
        model.to(device=place)  # type: ignore[call-arg]


def check_model(path: str) -> None:
    """Check that there is a model at a path, without loading its weights.

    Raises:
        ValueError: there is no model.
    """
    _name_and_kind(base_of(path))


def _name_and_kind(path: str) -> tuple[str, str]:
    """The path or id of the model that transformers loads, and the class that saved the model."""
    local = Path(path).expanduser()
    if path == "tiny" and not local.is_dir():
        raise ValueError(
            "model (tiny) is made for an environment: train it first (python -m rl.sft env=...) "
            "and give its folder, model=runs/.../checkpoints/last"
        )
    if local.is_dir() and not (local / "config.json").is_file():
        saved = [local / "checkpoints" / name for name in ("best", "last")]
        found = next((str(folder) for folder in saved if folder.is_dir()), None)
        give = found or "a folder saved by transformers"
        raise ValueError(f"model ({path}) has no config.json: give {give}")
    name = str(local) if local.is_dir() else path
    try:
        return name, (AutoConfig.from_pretrained(name).architectures or [""])[0]
    except (OSError, ValueError) as error:
        raise _unloadable(path, error) from error


def _unloadable(path: str, error: Exception) -> ValueError:
    problem = "cannot be loaded from its folder"
    if not Path(path).expanduser().is_dir():
        problem = "is neither a folder nor a model that the hub gives: check the path or the id"
    return ValueError(f"model ({path}) {problem} ({str(error).splitlines()[0]})")


def _from_pretrained(path: str, dtype: torch.dtype) -> PreTrainedModel:
    name, kind = _name_and_kind(path)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            name, dtype=dtype, output_loading_info=True
        )
    except (OSError, ValueError, SafetensorError) as error:
        raise _unloadable(path, error) from error
    model: PreTrainedModel
    info: dict[str, set[str]]
    model, info = loaded
    # Transformers drops a classifier's head, and fills missing weights at random, without an error.
    if kind.endswith("Classification"):
        raise ValueError(
            f"model ({path}) is a {kind}, as reward models are: give a causal language model"
        )
    if info["missing_keys"]:
        missing = ", ".join(sorted(info["missing_keys"])[:3])
        raise ValueError(
            f"model ({path}) lacks weights, which would be random ({missing}): give a causal "
            f"language model with all of them"
        )
    return model


@torch.no_grad()
def as_saved(model: PreTrainedModel, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of ``model`` by the names in a file that ``save_pretrained`` writes.

    They differ where transformers keeps a model in another form than its files: the experts of a
    mixture are one tensor in memory, and a file has a tensor for each. Servers read the names of
    files.

    Args:
        model: the model, as transformers loaded or made it.
        weights: all of its weights, by the names in its ``state_dict``.
    """
    found: dict[str, Tensor] = revert_weight_conversion(model, dict(weights))
    return found


@torch.no_grad()
def score_tokens(
    model: PreTrainedModel,
    token_ids: Sequence[int],
    temperature: float,
    supports: Sequence[Sequence[int]] = (),
    infer: Infer | None = None,
) -> list[float]:
    """The log-probability of each token, except the first, given the tokens before it.

    With supports, only of the tokens that have one: the logits of all tokens of a long sequence
    need gigabytes.

    Args:
        model: a causal language model.
        token_ids: one sequence.
        temperature: divisor of the logits. 0 (greedy) is scored at 1, as in policies.
        supports: sampling supports of the last tokens, each empty for the whole vocabulary.
        infer: computes the model's output from its inputs by name; None calls the model.
    """
    infer = infer or partial(_call, model)
    ids = torch.tensor(token_ids, device=model.device)
    count = len(supports) or len(token_ids) - 1
    inputs = {"input_ids": ids[None], "use_cache": False}
    if supports and "logits_to_keep" in signature(model.forward).parameters:
        inputs["logits_to_keep"] = count + 1
    logits = infer(inputs).logits[0, -count - 1 : -1]
    logits = logits.float() / (temperature or 1.0)
    if any(supports):
        support = Support.of([(0, supports)], len(supports)).map(lambda x: x.to(model.device))
        logits.masked_fill_(support.outside(0, count, logits.shape[-1]), -torch.inf)
    logprobs = logits.log_softmax(-1)
    scores: list[float] = logprobs.gather(1, ids[-count:, None])[:, 0].tolist()
    return scores


def tolerance_of(model: PreTrainedModel, seed: int = 0, infer: Infer | None = None) -> float:
    """Largest difference of a log-probability, in nats, that rounding can explain.

    Equal weights give slightly different log-probabilities if sums are rounded in another order.
    The difference depends on the model's size, depth, vocabulary and type. To measure it, the
    learner scores the same tokens alone, in a batch, and one by one through the cache, as a server
    generates. A server's kernels differ by up to 7 times as much, which depends on the
    processor: see docs/decisions/0007-weights-are-proved-by-a-probe.md.

    Args:
        model: the learner's model.
        seed: seed of the scored tokens.
        infer: computes the model's output from its inputs by name; None calls the model.
    """
    noise = scoring_noise(model, seed, infer)
    return max(
        LEAST_TOLERANCE.get(model.dtype, COARSE_TOLERANCE),
        NOISE_MARGIN * noise,
        min(SMALL_NOISE_MARGIN * noise, SMALL_TOLERANCE),
    )


@torch.no_grad()
def scoring_noise(model: PreTrainedModel, seed: int = 0, infer: Infer | None = None) -> float:
    """Largest difference, in nats, between three ways of scoring the same random tokens."""
    infer = infer or partial(_call, model)
    drawn = random.Random(seed)
    count = model.get_output_embeddings().out_features
    rows = [[drawn.randrange(count) for _ in range(NOISE_TOKENS)] for _ in range(NOISE_ROWS)]
    ids = torch.tensor(rows, device=model.device)
    single = [infer({"input_ids": row[None], "use_cache": False}).logits for row in ids]
    alone = _logprobs(torch.cat(single), ids)
    batch = _logprobs(infer({"input_ids": ids, "use_cache": False}).logits, ids)
    cached = _logprobs(_token_by_token(infer, cache_name(model), ids), ids)
    return max((alone - other).abs().max().item() for other in (batch, cached))


def _call(model: PreTrainedModel, inputs: Mapping[str, Any]) -> Any:
    return model(**inputs)


def _token_by_token(infer: Infer, name: str, ids: Tensor) -> Tensor:
    """Logits of ``ids``, ``[rows, n]``: the first half in one pass, the rest one by one.

    Args:
        infer: computes the model's output.
        name: the model's name of its cache.
        ids: the tokens.
    """
    half = ids.shape[1] // 2
    logits, cache = [], None
    for part in (ids[:, :half], *ids[:, half:].split(1, dim=1)):
        output = infer({"input_ids": part, name: cache, "use_cache": True})
        cache = getattr(output, name)
        logits.append(output.logits)
    return torch.cat(logits, dim=1)


def _logprobs(logits: Tensor, ids: Tensor) -> Tensor:
    return logits[:, :-1].float().log_softmax(-1).gather(2, ids[:, 1:, None])
