"""The keys that ``--help`` shows; ``--help=all`` shows every key."""

from __future__ import annotations

from collections.abc import Iterable

FEW = 40
"""A command with no more keys than this shows them all."""
MAIN_KEYS = frozenset(
    {
        "env",
        "env.max_turns",
        "env.tasks",
        "env.tools",
        "model",
        "policy",
        "policy.url",
        "algo",
        "algo.kl.coef",
        "steps",
        "prompts",
        "group_size",
        "staleness",
        "shaping",
        "curriculum.order",
        "sampling.temperature",
        "sampling.max_tokens",
        "context_length",
        "optimizer.lr",
        "lora.rank",
        "micro_batch_tokens",
        "eval.every",
        "eval.tasks",
        "eval.test_tasks",
        "seed",
        "device",
        "dtype",
        "threads",
        "out",
        "resume",
        "save_every",
        "max_seconds",
        "log",
        "log.project",
        "callbacks",
        "dry_run",
        # Of the other commands.
        "data",
        "split",
        "tasks",
        "episodes",
        "batch_size",
        "demonstrations",
        "keep",
        "pairs",
        "url",
    }
)


def of_another_command(name: str, known: Iterable[str], fields: set[str]) -> bool:
    """Whether no key of this command, the warm start's aside, is probably meant by ``name``."""
    if name not in MAIN_KEYS or name.split(".")[0] in fields:
        return False
    return not any(k.endswith(f".{name}") and not k.startswith("tiny.") for k in known)
