"""Adapter for environments of GEM (``pip install gem-llm``; arXiv:2510.01051).

Subclass :class:`GemEnv`, set ``game``, and register the class. GEM draws from Python's and NumPy's
global random generators. The adapter keeps generator states for each episode, and installs them
during each call of GEM. Only one call runs at a time. The seed therefore determines an episode,
unless another thread draws from the global generators during a call. For splits, copies and
rewards, see ``envs.adapters.gymnasium``.
"""

from __future__ import annotations

import logging
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
        """A new instance of the game."""
        return _gem().make(self.game, **self.config)

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
        """Does nothing: games hold no resources."""


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
