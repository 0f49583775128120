"""Environments of GEM (``pip install gem-llm``; arXiv:2510.01051), as ours.

Subclass :class:`GemEnv`, give it ``game``, and register the class as your own. GEM draws from
Python's and NumPy's global generators. Here each episode has its own, put in place for a call into
GEM and taken out after it, one call at a time: a seed decides an episode whatever runs beside it,
unless another thread draws from them during a call. For splits, copies and rewards, what
``envs.adapters.gymnasium`` says holds here as well.
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
    """An episode: the game, and the states of its generators between two calls."""

    generators: list[Any] = field(default_factory=list)


class GemEnv(GymnasiumEnv):
    """A game or task of GEM. Abstract: a subclass says which."""

    game: ClassVar[str]
    """GEM's id: "game:GuessTheNumber-v0-easy"."""
    config: ClassVar[Mapping[str, Any]] = {}
    """Further arguments of ``gem.make``."""
    state: GemState

    def make(self) -> Any:
        """A new game."""
        return _gem().make(self.game, **self.config)

    def begin(self, task: int) -> str:
        """The game's rules."""
        generators: list[Any] = []
        with _borrow(generators, task):
            first = super().begin(task)
        self.state = GemState(self.state.env, generators=generators)
        return first

    def turn(self, action: Action) -> Reply:
        """What the game answers."""
        with _borrow(self.state.generators):
            return super().turn(action)

    def act(self, text: str) -> str:
        """The text; the game itself says what is no action."""
        return text

    def end(self) -> None:
        """Nothing: a game has nothing to close."""


@contextmanager
def _borrow(own: list[Any], seed: int = 0) -> Iterator[None]:
    """The global generators as ``own`` has them, else seeded; afterwards as they were before."""
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
    """GEM. Importing it sets up the root logger, which is undone here."""
    root = logging.getLogger()
    level, handlers = root.level, root.handlers[:]
    try:
        return library("gem.envs.registration", "gem")
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
