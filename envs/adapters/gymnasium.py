"""Adapter for environments of Gymnasium, with text spaces or with two conversion functions.

Subclass :class:`GymnasiumEnv` and register the class. Each episode creates a foreign environment
and resets it with the task's seed, so episodes share no state. The policy reads the observations,
and nothing of ``info``, as in Gymnasium's own loop (see ``shown``). Limits:

- an end that is both terminated and truncated counts as terminated;

- equal seeds give equal episodes only if the foreign environment draws from its own generator, not
  from ``random``;
- splits hold different seeds, but the adapter cannot test whether their tasks differ;
- forks and snapshots need a foreign environment that can be pickled; otherwise they raise
  ``NotForkable``. ``reseed`` has no effect;
- the subclass declares ``reward_range``, ``reward_floor`` and a gold policy;
- the foreign environment is closed at the end of its episode, but not if the episode is abandoned.
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
    """The state of an episode: the foreign environment."""

    env: Any
    num_invalid: int = 0


class GymnasiumEnv(TextEnv[int, ForeignState]):
    """An environment of Gymnasium. Abstract: a subclass creates the foreign environment."""

    Options = ForeignOptions
    blocking = True

    def __init__(self, options: EnvOptions, services: Mapping[str, Any] | None = None) -> None:
        super().__init__(options, seeds(options), services)

    def make(self) -> Any:
        """A new foreign environment."""
        raise NotImplementedError

    def observe(self, observation: Any) -> str:
        """The text of a foreign observation; by default the observation itself."""
        if not isinstance(observation, str):
            raise TypeError(f"observation {observation!r:.40} is no text: override observe")
        return observation

    def shown(self, observation: Any, info: Mapping[str, Any]) -> str:
        """The text that the policy reads; by default ``observe(observation)``."""
        return self.observe(observation)

    def act(self, text: str) -> Any:
        """The foreign action that a text stands for; by default the text itself.

        Raises:
            ValueError: the text is not an action. The agent reads the message and may try again.
        """
        if not self.state.env.action_space.contains(text):
            raise ValueError(f"That is not an action of {self.state.env.action_space}.")
        return text

    def begin(self, task: int) -> str:
        """Reset a new foreign environment with the task's seed and return its first observation."""
        self.state = ForeignState(self.make())
        return self.shown(*self.state.env.reset(seed=task))

    def turn(self, action: Action) -> Reply:
        """Take the action in the foreign environment; reply to an invalid action with an error."""
        state = self.state
        try:
            move = self.act(action.content)
        except ValueError as error:
            state.num_invalid += 1
            if state.num_invalid < self.max_invalid_actions:
                return go_on(str(error))
            return cut(StopReason.INVALID_ACTIONS, observation=str(error))
        state.num_invalid = 0
        observation, reward, terminated, truncated, info = state.env.step(move)
        rewards, text = {"reward": float(reward)}, self.shown(observation, info)
        if not terminated and not truncated:
            return go_on(text, rewards)
        self.end()
        return finish(rewards, text) if terminated else cut(StopReason.TURN_LIMIT, rewards, text)

    def end(self) -> None:
        """Close the foreign environment at the end of its episode."""
        self.state.env.close()
