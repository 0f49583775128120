"""The settings ``context``: what happens when a conversation fills its context."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

INSTRUCTION = (
    "The context is almost full. Write a summary of everything that is needed to finish the task. "
    "Only the task and the summary will be kept."
)
"""Default text that asks for a summary."""


@dataclass(frozen=True, kw_only=True)
class ContextConfig:
    """Compaction: what an agent keeps when its conversation fills its context."""

    compact: Literal["none", "summary", "drop"] = "none"
    """none: the episode ends. summary: the policy writes a summary, which begins a new context and
    is trained. drop: the oldest turns are left out."""
    tokens: int = 0
    """Maximum number of tokens of one context; 0 for context_length."""
    summary_tokens: int = 128
    """Maximum number of tokens of a summary."""
    instruction: str = INSTRUCTION
    """The text that asks for a summary."""
    train_summaries: bool = True
    """Whether summaries are trained. If not, their tokens are recorded as a prompt."""

    def __post_init__(self) -> None:
        if self.tokens < 0:
            raise ValueError(f"tokens ({self.tokens}) must be >= 0")
        if self.summary_tokens < 1:
            raise ValueError(f"summary_tokens ({self.summary_tokens}) must be >= 1")
        if not self.instruction.strip():
            raise ValueError("instruction is empty: write the text that asks for a summary")
        if self.tokens and self.compact == "none":
            raise ValueError(
                f"tokens ({self.tokens}) needs compact=summary or compact=drop; context_length "
                f"limits a conversation without compaction"
            )
        if self.compact == "summary" and 0 < self.tokens <= self.summary_tokens:
            raise ValueError(
                f"tokens ({self.tokens}) must be above summary_tokens ({self.summary_tokens})"
            )
