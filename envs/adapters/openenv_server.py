"""Our environments by OpenEnv's own server: ``uvicorn.run(openenv_app("mastermind"), port=8000)``.

Each session has an episode of its own and shares services (a sandbox, an index) with the others. An
action is ``{"text": ...}``, an observation as well; ``reset`` takes a ``seed``, and a ``task`` if
it is not to be drawn. What OpenEnv's protocol has no place for: a failure of infrastructure reaches
the client as an error like any other, and rewards by name, scores and the reason of an end stand in
the observation's ``metadata``.
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
    """What an agent says."""

    text: str


class TextObservation(types.Observation):  # type: ignore[misc]
    """What it reads."""

    text: str


class ServedEnvironment(interfaces.Environment):  # type: ignore[misc]
    """A session's environment.

    Args:
        env: one of ours, for this session alone; it closes with it.
    """

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, env: TextEnv[Any, Any]) -> None:
        super().__init__()
        self._env = env
        self._state = types.State()

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, task: int | None = None
    ) -> TextObservation:
        """Begin an episode."""
        first, _ = self._env.reset(seed=seed, options=None if task is None else {"task": task})
        self._state = types.State(episode_id=episode_id)
        return TextObservation(text=first, metadata={"system_prompt": self._env.system_prompt})

    def step(self, action: TextAction, timeout_s: float | None = None) -> TextObservation:
        """Take one action; it may take the environment's ``step_timeout_s``, not ``timeout_s``."""
        step = self._env.step(action.text)
        self._state.step_count += 1
        over = step.terminated or step.truncated
        fields = {"text": step.observation, "reward": step.reward, "done": over}
        return TextObservation(**fields, metadata=_metadata(step))

    @property
    def state(self) -> Any:
        """How far the episode is."""
        return self._state

    def close(self) -> None:
        """The session is over."""
        self._env.close()


def openenv_app(name: str, max_sessions: int = 64, **options: Any) -> Callable[..., Any]:
    """An ASGI application that serves an environment; raises what ``envs.make`` does."""
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
