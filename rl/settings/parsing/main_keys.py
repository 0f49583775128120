"""The keys that ``--help`` shows. ``--help=all`` shows every key."""

from __future__ import annotations

from collections.abc import Iterable

FEW = 40
"""If a command has at most this number of keys, ``--help`` shows all of them."""
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
        "context.compact",
        "context.tokens",
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
        "json",
        "k",
        "compare",
        "reward_model",
        "suite",
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
        "test_tasks",
        "episodes",
        "batch_size",
        "demonstrations",
        "keep",
        "pairs",
        "url",
    }
)


def of_another_command(name: str, known: Iterable[str], fields: set[str]) -> bool:
    """Whether ``name`` is a key of another command, and is not the end of a key of this command.

    Keys of ``tiny`` are ignored.
    """
    if name not in MAIN_KEYS or name.split(".")[0] in fields:
        return False
    return not any(k.endswith(f".{name}") and not k.startswith("tiny.") for k in known)
