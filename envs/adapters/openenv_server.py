"""OpenEnv server for turnwise's environments: ``uvicorn.run(openenv_app("mastermind"))``.

Each session has its own episode; sessions share services such as a sandbox or an index. Actions and
observations are ``{"text": ...}``. ``reset`` takes a ``seed`` and, optionally, a ``task``. Named
rewards, scores and the stop reason are in the observation's ``metadata``. An infrastructure failure
reaches the client as an untyped error, because OpenEnv's protocol has no type for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openenv.core import create_app
from openenv.core.env_server import interfaces, types

from envs.env import TextEnv
from envs.episode import StepResult
from envs.registration import make


class TextAction(types.Action):  # type: ignore[misc]
    """An action."""

    text: str


class TextObservation(types.Observation):  # type: ignore[misc]
    """An observation."""

    text: str


class ServedEnvironment(interfaces.Environment):  # type: ignore[misc]
    """A session's environment.

    Args:
        env: the session's environment; closes with the session.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env: TextEnv[Any, Any]) -> None:
        super().__init__()
        self._env = env
        self._state = types.State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, task: int | None = None
    ) -> TextObservation:
        """Start an episode."""
        first, _ = self._env.reset(seed=seed, options=None if task is None else {"task": task})
        self._state = types.State(episode_id=episode_id)
        return TextObservation(text=first, metadata={"system_prompt": self._env.system_prompt})

    def step(self, action: TextAction, timeout_s: float | None = None) -> TextObservation:
        """Take one action.

        The environment's ``step_timeout_s`` limits the step; ``timeout_s`` is ignored.
        """
        step = self._env.step(action.text)
        self._state.step_count += 1
        over = step.terminated or step.truncated
        fields = {"text": step.observation, "reward": step.reward, "done": over}
        return TextObservation(**fields, metadata=_metadata(step))

    @property
    def state(self) -> Any:
        """The current episode's progress."""
        return self._state

    def close(self) -> None:
        """End the session."""
        self._env.close()


def openenv_app(name: str, max_sessions: int = 64, **options: Any) -> Callable[..., Any]:
    """An ASGI application that serves an environment. Raises the errors of ``envs.make``."""
    env = make(name, **options)
    return create_app(  # type: ignore[no-any-return]
        lambda: ServedEnvironment(env.group(1)[0]),
        TextAction,
        TextObservation,
        env_name=env.env_id,
        max_concurrent_envs=max_sessions,
    )


def _metadata(step: StepResult) -> dict[str, Any]:
    kept = {key: step.info[key] for key in ("rewards", "scores", "turn", "task")}
    return {**kept, "truncated": step.truncated, "stop_reason": step.info["stop_reason"]}
