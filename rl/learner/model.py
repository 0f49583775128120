"""The policy's model as the learner sees it: log-probabilities, entropies, values of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rl.credit.batch import Batch, MicroBatch
from rl.credit.objective import TokenScores
from rl.credit.support import Support
from rl.learner.lora import base_of, merged
from rl.learner.module import Scores, ScoringModule


def load_model(
    path_or_model: str | Path | PreTrainedModel,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> PreTrainedModel:
    """A causal language model in evaluation mode, from a folder, a hub id or as it stands.

    It stays in evaluation mode while it is trained: dropout would make the learner's
    log-probabilities differ from the sampler's.

    Args:
        path_or_model: a folder in the Hugging Face layout, a hub id, or a model, which is moved.
            Of an adapter's folder the base model is loaded and the adapter added to its weights.
        device: where the weights go.
        dtype: of the weights. The optimizer keeps float32 copies of narrower ones.

    Raises:
        ValueError: there is no model at the path, it is a classifier (a reward model, say), or its
            files are incomplete: weights that they lack would be random.
    """
    if isinstance(path_or_model, PreTrainedModel):
        model = path_or_model
    else:
        model = _from_folder_or_hub(str(path_or_model), dtype)
    model.to(device=torch.device(device), dtype=dtype)  # type: ignore[call-arg]
    model.eval()
    return model


def _from_folder_or_hub(path: str, dtype: torch.dtype) -> PreTrainedModel:
    base = base_of(path)
    if base == path:
        return _from_pretrained(path, dtype)
    try:
        model = _from_pretrained(base, dtype)
    except ValueError as error:
        raise ValueError(f"model ({path}) is an adapter, whose base {error}") from error
    return merged(model, path)


def check_model(path: str) -> None:
    """Find out whether there is a model at a path, without its weights.

    Raises:
        ValueError: there is none.
    """
    _name_and_kind(base_of(path))


def _name_and_kind(path: str) -> tuple[str, str]:
    """How transformers names the model at ``path``, and the class that saved it."""
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
    told: dict[str, set[str]]
    model, told = loaded
    # Transformers drops a classifier's head, or makes up a missing one, and goes on.
    if kind.endswith("Classification"):
        raise ValueError(
            f"model ({path}) is a {kind}, as reward models are: give a causal language model"
        )
    if told["missing_keys"]:
        missing = ", ".join(sorted(told["missing_keys"])[:3])
        raise ValueError(
            f"model ({path}) lacks weights, which would be random ({missing}): give a causal "
            f"language model with all of them"
        )
    return model


class ScoringModel:
    """Scores sampled tokens with the weights of ``model``, which is used in place, not copied.

    Args:
        model: the very object that the local policy samples from.
        temperature: that tokens are sampled at; 0 (greedy) scores at 1, as policies do.
        own_trunk: whether values come from a copy of the model, which is trained apart.
        with_values: whether there is a value head.

    Raises:
        ValueError: the model does something between its last hidden state and its logits (capping,
            scaling) that the head here does not do.
    """

    value_trunk: nn.Module | None = None
    """Computes the hidden states of values, where that is not the model's own trunk."""

    def __init__(
        self,
        model: PreTrainedModel,
        temperature: float = 1.0,
        own_trunk: bool = False,
        *,
        with_values: bool = False,
    ) -> None:
        if temperature < 0:
            raise ValueError(f"temperature ({temperature}) must be >= 0")
        self.model = model
        self.temperature = temperature or 1.0
        self.root = ScoringModule(model, with_values=with_values, own_trunk=own_trunk)
        """All forward passes go through this module."""
        self.value_head = self.root.value_head
        self.value_trunk = self.root.value_trunk
        self.on_score: Callable[[], None] = lambda: None
        """Called as each micro-batch begins."""
        self._check_head()

    @property
    def context_window(self) -> int:
        """The most tokens of one sequence."""
        window: int = self.model.config.max_position_embeddings
        return window

    @property
    def device(self) -> torch.device:
        """Where the head's weights are."""
        return self.root.head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of scores: float32, or float64 for a float64 model."""
        return self.root.dtype

    def parameters(self) -> list[nn.Parameter]:
        """Everything that is trained: the model's parameters, then the critic's."""
        return [p for p in self.model.parameters() if p.requires_grad] + self.critic_parameters()

    def critic_parameters(self) -> list[nn.Parameter]:
        """What is trained to tell values alone; none without values."""
        parts = [part for part in (self.value_head, self.value_trunk) if part is not None]
        return [p for part in parts for p in part.parameters() if p.requires_grad]

    def score(self, micro: MicroBatch) -> TokenScores:
        """Score the micro-batch's tokens, at the temperature; see :meth:`ScoringModule.forward`.

        Args:
            micro: on the model's device.
        """
        self.on_score()
        scores: Scores = self.root(micro, self.temperature)
        return TokenScores(*scores)

    @torch.no_grad()
    def score_batch(self, batch: Batch, max_tokens: int) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities, and values where there is a head, of every token of ``batch``.

        Args:
            batch: of N tokens.
            max_tokens: most tokens, padding counted, in one forward pass.

        Returns:
            ``[N]`` float64 on the CPU, each.
        """
        logprobs = torch.empty(batch.num_tokens, dtype=torch.float64)
        values = torch.empty_like(logprobs) if self.value_head is not None else None
        for micro in batch.micro_batches(max_tokens):
            scores = self.score(micro.to(self.device))
            logprobs[micro.tokens] = scores.logprobs.double().cpu()
            if values is not None and scores.values is not None:
                values[micro.tokens] = scores.values.double().cpu()
        return logprobs, values

    @torch.no_grad()
    def _check_head(self) -> None:
        """Compare the head here with the model's own on a few tokens."""
        ids = torch.arange(4, device=self.device)[None] % self.root.head.out_features
        theirs = self.model(input_ids=ids, use_cache=False).logits
        ours = self.root.logits(ids)
        tolerance = 1e-5 if theirs.dtype in (torch.float32, torch.float64) else 2e-2
        if not torch.allclose(ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True):
            raise ValueError(
                f"model_type ({self.model.config.model_type}) changes its logits after the last "
                f"linear layer (capping or scaling), which the learner does not: use a model "
                f"whose logits are that layer's output (Qwen, Llama, Mistral, GPT-2, ...)"
            )


@torch.no_grad()
def score_tokens(
    model: PreTrainedModel,
    token_ids: Sequence[int],
    temperature: float,
    supports: Sequence[Sequence[int]] = (),
) -> list[float]:
    """The log-probability of each token but the first, given those before it.

    Args:
        model: a causal language model.
        token_ids: one sequence.
        temperature: that logits are divided by; 0 (greedy) is scored at 1, as policies do.
        supports: what the last tokens were sampled from; none for the whole vocabulary.
    """
    ids = torch.tensor(token_ids, device=model.device)
    logits = model(input_ids=ids[None], use_cache=False).logits[0, :-1]
    logits = logits.float() / (temperature or 1.0)
    if supports:
        told = Support.of([(0, supports)], len(supports)).to(model.device)
        outside = told.outside(0, len(supports), logits.shape[-1])
        logits[-len(supports) :].masked_fill_(outside, -torch.inf)
    logprobs = logits.log_softmax(-1)
    scores: list[float] = logprobs.gather(1, ids[1:, None])[:, 0].tolist()
    return scores
