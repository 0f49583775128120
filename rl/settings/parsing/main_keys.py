"""The keys that ``--help`` shows. ``--help=all`` shows every key."""

from __future__ import annotations

from collections.abc import Iterable

FEW = 40
"""Maximum number of keys of a command for which ``--help`` shows all."""
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
        # Keys of the other commands.
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
    """Whether ``name`` is a key of another command, and unlike all keys of this one.

    Similarity to keys of ``tiny`` does not count.
    """
    if name not in MAIN_KEYS or name.split(".")[0] in fields:
        return False
    return not any(k.endswith(f".{name}") and not k.startswith("tiny.") for k in known)
