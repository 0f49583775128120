"""Which environments have demonstrations; checked before torch is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from envs.env import TextEnv

if TYPE_CHECKING:
    from rl.data.conversations import Conversation

ANOTHER_MODEL = "or take another model than model=tiny: model=FOLDER or a Hugging Face id"
"""Advice for a warm start without demonstrations."""


class NoDemonstrations(ValueError):
    """Raised when an environment has no demonstrations. Callers add advice to the message."""


@runtime_checkable
class Demonstrated(Protocol):
    """An environment with recorded conversations instead of a scripted policy."""

    def conversations(self, tasks: Sequence[int], seed: int) -> list[Conversation]:
        """The conversations of ``tasks``.

        Conversations from a file have no tasks; then all are returned.
        """
        ...


def check_demonstrator(env: TextEnv[Any, Any]) -> None:
    """Check before any episode that an environment has demonstrations.

    Raises:
        NoDemonstrations: the environment has no demonstrator. A demonstrator that needs a running
            episode passes.
    """
    if isinstance(env, Demonstrated):
        return
    try:
        env.demonstrator(np.random.default_rng(0))
    except NotImplementedError as error:
        raise no_demonstrations(env) from error
    except Exception:
        # Without an episode, the author's code may raise anything.
        return


def no_demonstrations(env: TextEnv[Any, Any]) -> NoDemonstrations:
    """The error for an environment whose author wrote no demonstrator."""
    return NoDemonstrations(
        f"{env.env_id} has no demonstrator to imitate: write {type(env).__name__}.demonstrator"
    )
