"""The parts of a run's configuration: how to sample, to evaluate, what the default model is."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from agents.completion import SamplingParams


@dataclass(frozen=True, kw_only=True)
class SamplingConfig:
    """How the policy samples during training."""

    temperature: float = 1.0
    """Logits are divided by it, in the policy and in the learner."""
    top_p: float = 1.0
    """Share of the mass that is sampled from, likeliest tokens first; the learner renormalises over
    the same tokens, which are kept beside each one: bound them by top_k."""
    top_k: int = 0
    """How many of the likeliest tokens are sampled from, before top_p; 0: all."""
    max_tokens: int = 512
    """At most this many tokens per turn."""
    slots: int = 64
    """Sequences that a policy, or each of its servers, decodes at once."""

    def __post_init__(self) -> None:
        at_least(0, self, "temperature", "top_k")
        at_least(1, self, "max_tokens", "slots")
        self.params()

    def check_training(self) -> None:
        """Refuse settings that only an evaluation may have.

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
        """What a policy is asked.

        Args:
            with_support: whether it must tell what top_p and top_k left, which training needs.

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
    """Steps between evaluations on validation tasks; they choose the best checkpoint."""
    tasks: int = 128
    """Validation tasks per evaluation; 0: none, and the last weights count as the best."""
    test_tasks: int = 512
    """Test tasks, used for no choice: measured at the start and at the end. 0: none."""
    temperature: float = 1.0
    """Sampling temperature; 0 is greedy."""
    top_p: float = 1.0
    """Share of the mass that is sampled from, likeliest tokens first."""
    top_k: int = 0
    """How many of the likeliest tokens are sampled from, before top_p; 0: all."""

    def __post_init__(self) -> None:
        at_least(0, self, "tasks", "test_tasks", "temperature", "top_k")
        at_least(1, self, "every")
        self.params(max_tokens=1)

    def params(self, max_tokens: int) -> SamplingParams:
        """What a policy is asked, for at most so many tokens a turn.

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
    """Conversations that an update imitates beside its episodes (algo.ptx_coef)."""

    data: str = "demonstrations"
    """"demonstrations": the environment's imperfect author; or a file of {"messages": [...]}."""
    demonstrations: int = 2000
    """How many episodes its author plays."""
    batch_size: int = 32
    """Conversations per update."""

    def __post_init__(self) -> None:
        at_least(1, self, "demonstrations", "batch_size")


@dataclass(frozen=True, kw_only=True)
class TinyRecipe:
    """What model=tiny is: a Qwen3 of this size, and how it is warm-started."""

    vocab_size: int = 512
    """Entries of its tokenizer, the 256 bytes among them."""
    hidden_size: int = 96
    """Width."""
    intermediate_size: int = 256
    """Width of the feed-forward layers."""
    num_layers: int = 3
    """Decoder layers."""
    num_heads: int = 3
    """Attention heads; they share hidden_size."""
    num_kv_heads: int = 1
    """Key-value heads."""
    context_length: int = 1024
    """Its window, in tokens."""
    demonstrations: int = 8000
    """Episodes of the environment's imperfect author."""
    steps: int = 800
    """Supervised steps."""
    batch_size: int = 32
    """Episodes per supervised step."""
    lr: float = 3e-3
    """Learning rate after the warm-up; it falls to 0 with the last step."""
    warmup_steps: int = 50
    """Steps over which the rate grows to lr."""

    def __post_init__(self) -> None:
        at_least(1, self, *(f.name for f in fields(self) if f.name != "lr"))
        if not 0 < self.lr <= 1:
            raise ValueError(f"lr ({self.lr}) must be above 0 and at most 1")
        if self.vocab_size < 261:
            raise ValueError(f"vocab_size ({self.vocab_size}) must be >= 261: bytes and messages")
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
    """Refuse a setting below ``least``, or one that is no finite number.

    Raises:
        ValueError: names the key, its value and the bound.
    """
    for key in keys:
        value = getattr(config, key)
        # Put this way round, the check catches nan as well.
        if not value >= least:
            raise ValueError(f"{key} ({value}) must be >= {least}")
        if value == math.inf:
            raise ValueError(f"{key} ({value}) must be finite")
