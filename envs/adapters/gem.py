"""Adapter for environments of GEM (``pip install gem-llm``; arXiv:2510.01051).

Subclass :class:`GemEnv`, set ``game``, and register the class. Of each turn the policy reads what
GEM's ``ObservationWrapper`` shows of it: ``info["prefix"]``, the observation and
``info["suffix"]``, which holds the board of most games. Tested with GEM 0.0.3 and 0.1.0.

GEM draws from Python's and NumPy's global random generators. The adapter keeps generator states for
each episode, and installs them during each call of GEM. Only one call runs at a time. The seed
therefore determines an episode, unless another thread draws from the global generators during a
call. GEM's data sets draw their questions by the seed, so splits can share questions. For ends,
copies and rewards, see ``envs.adapters.gymnasium``.
"""

from __future__ import annotations

import inspect
import logging
import pkgutil
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from envs.adapters.foreign import library
from envs.adapters.gymnasium import ForeignState, GymnasiumEnv
from envs.episode import Action, Reply

_BORROWED = threading.Lock()


@dataclass(slots=True)
class GemState(ForeignState):
    """An episode: the game, and the states of its generators between calls."""

    generators: list[Any] = field(default_factory=list)


class GemEnv(GymnasiumEnv):
    """A game or task of GEM. Abstract: a subclass sets ``game``."""

    game: ClassVar[str]
    """Id of the game in GEM: "game:GuessTheNumber-v0-easy"."""
    config: ClassVar[Mapping[str, Any]] = {}
    """Arguments of ``gem.make`` besides the game's id."""
    state: GemState

    def make(self) -> Any:
        """A new instance of the game. One whose class takes a ``seed`` gets that of the task."""
        gem = _gem()
        seed = self.tasks[self._running().task_index]
        seeded = {"seed": seed} if _takes_seed(gem.ENV_REGISTRY.get(self.game)) else {}
        return gem.make(self.game, **{**seeded, **self.config})

    def shown(self, observation: Any, info: Mapping[str, Any]) -> str:
        """The observation between ``info``'s prefix and suffix, as GEM's wrapper shows it."""
        text = super().shown(observation, info)
        if _is_wrapped(self.state.env):
            return text
        line = text + "\n" if text and not text.endswith("\n") else text
        return f"{info.get('prefix', '')}{line}{info.get('suffix', '')}"

    def begin(self, task: int) -> str:
        """Start a new game and return its rules."""
        generators: list[Any] = []
        with _borrow(generators, task):
            first = super().begin(task)
        self.state = GemState(self.state.env, generators=generators)
        return first

    def turn(self, action: Action) -> Reply:
        """Take the action in the game and return the game's reply."""
        with _borrow(self.state.generators):
            return super().turn(action)

    def act(self, text: str) -> str:
        """Return the text unchanged; the game itself handles invalid actions."""
        return text

    def end(self) -> None:
        """Close what has a ``close``; most games hold no resources."""
        close = getattr(self.state.env, "close", None)
        if close is not None:
            close()


def _takes_seed(spec: Any) -> bool:
    """Whether the class of a game names a parameter ``seed``.

    GEM's data sets do, and in 0.0.3 they ignore the seed of ``reset``. ``gem.make_vec`` passes it
    as well.
    """
    if spec is None:
        return False
    entry = spec.entry_point
    kind = pkgutil.resolve_name(entry) if isinstance(entry, str) else entry
    return "seed" in inspect.signature(kind).parameters


def _is_wrapped(env: Any) -> bool:
    """Whether an observation wrapper of GEM is around a game; it shows prefix and suffix itself."""
    wrappers = library("gem.wrappers.observation_wrapper", "gem")
    while isinstance(env, wrappers.EnvWrapper) and not isinstance(env, wrappers.ObservationWrapper):
        env = env.env
    return isinstance(env, wrappers.ObservationWrapper)


@contextmanager
def _borrow(own: list[Any], seed: int = 0) -> Iterator[None]:
    """Run the context's body with an episode's states of the global random generators.

    The first use for an episode seeds the generators. The end of the context stores the episode's
    states in ``own`` and restores the previous states.
    """
    with _BORROWED:
        others = random.getstate(), np.random.get_state()
        if not own:
            own[:] = random.Random(seed).getstate(), np.random.RandomState(seed).get_state()
        random.setstate(own[0])
        np.random.set_state(own[1])
        try:
            yield
        finally:
            own[:] = random.getstate(), np.random.get_state()
            random.setstate(others[0])
            np.random.set_state(others[1])


def _gem() -> Any:
    """Import ``gem``, and undo its changes to the root logger."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        return library("gem.envs.registration", "gem")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
