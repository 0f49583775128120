"""Environments of Gymnasium: of texts, or of what two functions turn into texts and back.

Subclass :class:`GymnasiumEnv` and register the class as your own. Each episode plays an environment
made for it and reset with the task's seed, so nothing is left over from another. What the foreign
environment must keep for itself:

- same seed, same episode: it must draw from its own generator, not from ``random``;
- splits hold different seeds; whether those ask different things, it alone knows;
- copies in mid-episode: it must pickle, else ``NotForkable``; no fork's ``reseed`` reaches it;
- ``reward_range``, ``reward_floor`` and a gold policy are what the subclass says they are;
- what it holds open: it is closed when its episode ends, and not if that is abandoned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from envs.adapters.foreign import ForeignOptions, seeds
from envs.env import EnvOptions, TextEnv
from envs.episode import Action, Reply, StopReason, cut, finish, go_on


@dataclass(slots=True)
class ForeignState:
    """An episode: the foreign environment itself."""

    env: Any
    num_invalid: int = 0


class GymnasiumEnv(TextEnv[int, ForeignState]):
    """An environment of Gymnasium, as one of ours. Abstract: a subclass says how it is made."""

    Options = ForeignOptions
    blocking = True

    def __init__(self, options: EnvOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, seeds(options), services)

    def make(self) -> Any:
        """A new foreign environment."""
        raise NotImplementedError

    def observe(self, observation: Any) -> str:
        """What the agent reads; texts as they are."""
        if not isinstance(observation, str):
            raise TypeError(f"observation {observation!r:.40} is no text: override observe")
        return observation

    def act(self, text: str) -> Any:
        """The action that a text means; texts as they are.

        Raises:
            ValueError: it means none; the agent reads why, and may try again.
        """
        if not self.state.env.action_space.contains(text):
            raise ValueError(f"That is not an action of {self.state.env.action_space}.")
        return text

    def begin(self, task: int) -> str:
        """The observation after a reset with the task's seed."""
        self.state = ForeignState(self.make())
        return self.observe(self.state.env.reset(seed=task)[0])

    def turn(self, action: Action) -> Reply:
        """What the environment answers, or what is wrong with the action."""
        state = self.state
        try:
            move = self.act(str(action))
        except ValueError as error:
            state.num_invalid += 1
            if state.num_invalid < self.max_invalid_actions:
                return go_on(str(error))
            return cut(StopReason.INVALID_ACTIONS, observation=str(error))
        state.num_invalid = 0
        observation, reward, terminated, truncated, _ = state.env.step(move)
        rewards, text = {"reward": float(reward)}, self.observe(observation)
        if not terminated and not truncated:
            return go_on(text, rewards)
        self.end()
        return finish(rewards, text) if terminated else cut(StopReason.TURN_LIMIT, rewards, text)

    def end(self) -> None:
        """Close the foreign environment, whose episode is over."""
        self.state.env.close()
