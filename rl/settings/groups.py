"""Groups of a run's settings: sampling, evaluation, imitated texts, and ``model=tiny``."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from agents.completion import SamplingParams


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """Sampling by the policy during training."""

    temperature: float = 1.0
    """Divisor of the logits, in the policy and in the learner."""
    top_p: float = 1.0
    """Probability mass to sample from, likeliest tokens first. The learner renormalises over the
    same tokens, which are stored with each sampled token. Limit their number with top_k."""
    top_k: int = 0
    """Number of likeliest tokens to sample from, before top_p; 0 for all."""
    max_tokens: int = 512
    """Maximum number of tokens in a turn."""
    slots: int = 64
    """Maximum number of sequences that a policy, or each of its servers, decodes at the same
    time."""

    def __post_init__(self) -> None:
        at_least(0, self, "temperature", "top_k")
        at_least(1, self, "max_tokens", "slots")
        self.params()

    def check_training(self) -> None:
        """Check that training can use these settings.

        Raises:
            ValueError: sampling is greedy.
        """
        if self.temperature == 0:
            raise ValueError(
                "sampling.temperature (0) must be above 0 in training: all greedy answers to a "
                "task are equal, and nothing is learned from them; give sampling.temperature=1 "
                "(eval.temperature=0 evaluates greedily)"
            )

    def params(self, *, with_support: bool = True) -> SamplingParams:
        """The parameters of a request to a policy.

        Args:
            with_support: whether the response includes the tokens that top_p and top_k kept.
                Training needs them.

        Raises:
            ValueError: a value is outside its range.
        """
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=self.max_tokens,
            with_support=with_support,
        )


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Held-out evaluation: validation tasks during the run, test tasks before and after it."""

    every: int = 10
    """Number of steps between evaluations on validation tasks, which select the best checkpoint."""
    tasks: int = 128
    """Number of validation tasks in each evaluation. With 0 there is no validation, and the last
    weights count as the best."""
    test_tasks: int = 512
    """Number of test tasks, which are played before and after training. No choice depends on them,
    and eval.tasks does not affect them. 0 plays none."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: float = 1.0
    """Probability mass to sample from, likeliest tokens first."""
    top_k: int = 0
    """Number of likeliest tokens to sample from, before top_p; 0 for all."""

    def __post_init__(self) -> None:
        at_least(0, self, "tasks", "test_tasks", "temperature", "top_k")
        at_least(1, self, "every")
        self.params(max_tokens=1)

    def params(self, max_tokens: int) -> SamplingParams:
        """The parameters of a request to a policy.

        Args:
            max_tokens: maximum number of tokens in a turn.

        Raises:
            ValueError: a value is outside its range.
        """
        return SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            max_tokens=max_tokens,
            with_support=False,
        )


@dataclass(frozen=True, kw_only=True)
class TextsConfig:
    """Conversations that each update imitates besides its episodes (algo.ptx_coef above 0)."""

    data: str = "demonstrations"
    """ "demonstrations" for episodes of the environment's imperfect demonstrator, or a file of
    {"messages": [...]}."""
    demonstrations: int = 2000
    """Number of episodes that the demonstrator plays."""
    batch_size: int = 32
    """Conversations per update."""

    def __post_init__(self) -> None:
        at_least(1, self, "demonstrations", "batch_size")


@dataclass(frozen=True, kw_only=True)
class PlanConfig:
    """The memory plan that --dry-run prints."""

    gpu_gb: float = 0.0
    """Memory of the GPU to plan for, in GiB; 0: the device of the run."""

    def __post_init__(self) -> None:
        at_least(0, self, "gpu_gb")


@dataclass(frozen=True, kw_only=True)
class TinyRecipe:
    """Size and warm start of model=tiny, a small Qwen3."""

    vocab_size: int = 512
    """Number of entries of the tokenizer, including the 256 bytes."""
    hidden_size: int = 96
    """Width of the hidden states."""
    intermediate_size: int = 256
    """Width of the feed-forward layers."""
    num_layers: int = 3
    """Number of decoder layers."""
    num_heads: int = 3
    """Number of attention heads, which share hidden_size."""
    num_kv_heads: int = 1
    """Number of key-value heads."""
    context_length: int = 1024
    """Context window in tokens."""
    demonstrations: int = 8000
    """Number of demonstrated episodes."""
    steps: int = 800
    """Number of supervised steps."""
    batch_size: int = 32
    """Episodes per supervised step."""
    lr: float = 3e-3
    """Learning rate after the warm-up. It decays to 0 at the last step."""
    warmup_steps: int = 50
    """Number of steps over which the learning rate grows to lr."""

    def __post_init__(self) -> None:
        at_least(1, self, *(f.name for f in fields(self) if f.name != "lr"))
        if not 0 < self.lr <= 1:
            raise ValueError(f"lr ({self.lr}) must be above 0 and at most 1")
        if self.vocab_size < 261:
            raise ValueError(
                f"vocab_size ({self.vocab_size}) must be >= 261: 256 bytes and 5 special tokens"
            )
        if self.hidden_size % self.num_heads or self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads ({self.num_heads}) must divide hidden_size ({self.hidden_size}) and be "
                f"a multiple of num_kv_heads ({self.num_kv_heads})"
            )


def at_least(
    least: float,
    config: object,
    *keys: str,
) -> None:
    """Check that settings are finite and at least ``least``.

    Raises:
        ValueError: a setting is not finite, or is below ``least``. The message names the key, the
            value and the bound.
    """
    for key in keys:
        value = getattr(config, key)
        # Written so that nan fails.
        if not value >= least:
            raise ValueError(f"{key} ({value}) must be >= {least}")
        if value == math.inf:
            raise ValueError(f"{key} ({value}) must be finite")
