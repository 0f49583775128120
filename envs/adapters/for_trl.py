"""turnwise's environments in TRL: ``GRPOTrainer(environment_factory=trl_factory("mastermind"))``.

The model acts by calling one tool, ``act``, whose text is the action. The rows of TRL's data set
select the tasks: ``Dataset.from_list(trl_rows("mastermind", 1000))``. TRL repeats one row for all
members of a group, so they play the same task with the same seed. Limits of TRL:

- text outside a call of ``act`` does not reach the environment;
- TRL receives the rewards of all turns as one sum, at the end of the episode. After an
  infrastructure failure the sum is ``None``; TRL ignores such an episode and does not retry it;
- TRL has no stop strings, and cannot insert results into the agent's own message.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from envs.episode import EnvFailure
from envs.registration import make
from tools.threads import in_thread

RULES = "Call act to act: what you write outside of it reaches nobody. Go on until it is over."
OVER = "It is over."
FAILED = "The environment failed. This episode counts for nothing: stop."


class TrlEnvironment:
    """A turnwise environment with TRL's interface: made once, reset for each episode.

    Args:
        name: id or bare name of the environment.
        options: the environment's options.
    """

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self._env = make(name, **options)
        self._rules = self._env.system_prompt
        self._over, self._failed, self._return = True, False, 0.0

    def reset(self, task: int, seed: int = 0, prompt: object = None) -> str:
        """Start an episode and return the observation that follows the prompt.

        TRL passes the columns of a row as arguments. The prompt holds the rules of all tasks; rules
        of one task precede its observation.
        """
        self._over, self._failed, self._return = False, False, 0.0
        try:
            first, _ = self._env.reset(seed=seed, options={"task": task})
        except EnvFailure:
            self._failed = self._over = True
            return FAILED
        rules = self._env.system_prompt
        return first if rules in (None, self._rules) else f"{rules}\n\n{first}"

    async def act(self, text: str) -> str:
        """Act in the environment and read its reply.

        Args:
            text: The complete action or answer.
        """
        # In a thread, because TRL awaits the calls of one message together on its own loop.
        return await in_thread(functools.partial(self._step, text))

    def get_reward(self) -> float | None:
        """The episode's return, or None after an infrastructure failure."""
        while not self._over:
            self._step("")
        return None if self._failed else self._return

    def _step(self, text: str) -> str:
        if self._over:
            return FAILED if self._failed else OVER
        try:
            step = self._env.step(text)
        except EnvFailure:
            self._failed = self._over = True
            return FAILED
        self._return += step.reward
        self._over = step.terminated or step.truncated
        return "\n".join(filter(None, [step.observation, OVER if self._over else ""]))


def trl_factory(name: str, **options: Any) -> Callable[[], TrlEnvironment]:
    """A picklable factory for TRL's ``environment_factory``.

    Raises:
        UnknownNameError, TypeError, ValueError: as ``envs.make``.
    """
    make(name, **options).close()
    return functools.partial(TrlEnvironment, name, options)


def trl_rows(name: str, num_tasks: int, seed: int = 0, **options: Any) -> list[dict[str, Any]]:
    """The first ``num_tasks`` tasks of an environment, as rows of a data set for TRL.

    Raises:
        ValueError: the environment has fewer tasks.
    """
    env = make(name, **options)
    if not 1 <= num_tasks <= len(env.tasks):
        raise ValueError(f"num_tasks ({num_tasks}) must be from 1 to {len(env.tasks)}")
    system = "\n".join(filter(None, [env.system_prompt, RULES]))
    prompt = [{"role": "system", "content": system}, {"role": "user", "content": ""}]
    env.close()
    return [{"prompt": prompt, "task": task, "seed": seed} for task in range(num_tasks)]
