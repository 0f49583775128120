"""The error for a name or a key that does not exist: what was probably meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rl.errors import UsageError
from rl.settings.moved_keys import MOVED
from tools.registry import closest

ELSEWHERE = {
    "learning_rate": "optimizer.lr",
    "num_generations": "group_size",
    "batch_size": "prompts",
    "per_device_train_batch_size": "prompts",
    "max_completion_length": "sampling.max_tokens",
    "max_steps": "steps",
    "beta": "algo.kl.coef",
    "output_dir": "out",
}
"""What other trainers call a key of ours."""


def unknown(kind: str, name: str, known: Sequence[str] | Mapping[str, Any]) -> UsageError:
    """The error for a name that is not among ``known``: what was probably meant."""
    leaf = name.rsplit(".", 1)[-1]
    same_leaf = [k for k in known if k.rsplit(".", 1)[-1] == leaf]
    # `lr` means the run's key rather than the warm start's.
    same_leaf.sort(key=lambda k: k.startswith("tiny."))
    ours = [k for k in known if k == ELSEWHERE.get(name)]
    # Short for one of them: vllm for vllm-server.
    longer = [k for k in known if len(name) > 2 and k.startswith(f"{name}-")]
    hint = next(iter(ours + same_leaf + longer), None) or closest(name, known)
    known_names = "--help=all lists them all." if kind == "key" else f"One of: {', '.join(known)}."
    return UsageError(f"unknown {kind} {name!r}.{_meant(hint)} {known_names}")


def moved(name: str) -> str:
    """The error for a key that has another name now; "" where it never was one."""
    return f"unknown key {name!r}: it is called {MOVED[name]!r} now" if name in MOVED else ""


def unknown_option(name: str, choice: str, options: Sequence[str]) -> str:
    """The error for an option that a chosen plug-in does not have.

    Args:
        name: the whole key.
        choice: what was chosen, as the command line says it: ``algo.surrogate=gspo``.
        options: the whole keys of what it has.
    """
    group, _, option = name.rpartition(".")
    names = [key.removeprefix(f"{group}.") for key in options]
    hint = closest(option, names)
    meant = _meant(f"{group}.{hint}" if hint else None)
    return f"unknown key {name!r}.{meant} {choice} has {', '.join(names) or 'no options'}."


def _meant(hint: str | None) -> str:
    return f" Did you mean {hint!r}?" if hint else ""
