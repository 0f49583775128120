"""Task sets of verifiers (``pip install verifiers``, its ``v1``), as ours.

Subclass :class:`VerifiersEnv`, say which task set, and register the class as your own. A task's
prompt is the first observation, its rewards and metrics score the whole conversation, each under
its own name. One turn, or more where the subclass says how the user answers. What does not hold:

- tasks that need verifiers' own machinery (tool servers, containers, rewards that ask for a
  runtime) are refused, since without it their score would be another;
- splits are by a hash of a task's key, unless the subclass has a task set for each;
- all rewards are paid at the end, and a long computation blocks the event loop;
- copies in mid-episode need a task that pickles, else ``NotForkable``;
- ``reward_range``, ``reward_floor`` and a gold policy are what the subclass says they are.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from envs.adapters.foreign import library
from envs.datasets import Row, split_of
from envs.env import EnvOptions, TextEnv
from envs.episode import Action, EnvFailure, Reply, StopReason, cut, finish, go_on


@dataclass(slots=True)
class Conversation:
    """An episode: the task, and who said what."""

    task: Any
    messages: list[tuple[str, str]] = field(default_factory=list)
    """Roles ("user", "assistant") and texts."""


class VerifiersEnv(TextEnv[Any, Conversation]):
    """A task set of verifiers, as an environment. Abstract: a subclass says which."""

    hashed: ClassVar[bool] = True
    """Whether a hash says which tasks of ``taskset`` are of a split; else all of them are."""

    def __init__(self, options: EnvOptions, services: Mapping[str, Any] | None = None) -> None:
        kind: Any = type(self)
        super().__init__(options, split_tasks(kind, options.split), services)

    @classmethod
    def taskset(cls, split: str) -> Any:
        """The task set that has a split's tasks; called once per process."""
        raise NotImplementedError

    def user(self, conversation: Conversation) -> str | None:
        """What the user says to the agent's last message; None ends the conversation."""
        return None

    def begin(self, task: Any) -> str:
        """The task's prompt, its system prompt in front."""
        first = "\n\n".join(filter(None, [task.data.system_prompt, task.data.prompt_text]))
        self.state = Conversation(task, [("user", first)])
        return first

    async def turn(self, action: Action) -> Reply:
        """What the user says, or the end."""
        state = self.state
        state.messages.append(("assistant", str(action)))
        said = self.user(state)
        if said is not None and self.turns_left > 1:
            state.messages.append(("user", said))
            return go_on(said)
        trace = trace_of(state)
        try:
            await state.task.score(trace)
        # Whatever a task raises, verifiers hands on as an error of the task.
        except Exception as error:
            raise EnvFailure(f"{self._name}: {error}", retryable=False) from error
        rewards = {name: reward.value for name, reward in trace.rewards.items()}
        scores = dict(trace.metrics)
        if said is not None:
            return cut(StopReason.TURN_LIMIT, rewards, scores=scores)
        return finish(rewards, scores=scores)


def trace_of(conversation: Conversation) -> Any:
    """The conversation as verifiers' rewards read it."""
    vf, task = library("verifiers.v1", "verifiers"), conversation.task
    kinds = {"user": vf.UserMessage, "assistant": vf.AssistantMessage}
    nodes = [
        vf.MessageNode(
            parent=place - 1 if place else None,
            message=kinds[role](content=text),
            sampled=role == "assistant",
        )
        for place, (role, text) in enumerate(conversation.messages)
    ]
    state = library("verifiers.v1.state", "verifiers").state_cls(type(task))()
    described = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    agent = vf.AgentInfo(config=vf.AgentConfig())
    return vf.Trace(
        task=described, agent=agent, nodes=nodes, state=state, is_completed=True, ok=True
    )


@functools.cache
def split_tasks(env_type: Any, split: str) -> list[Any]:
    """The tasks of a ``VerifiersEnv`` that belong to ``split``; loaded once per process.

    Raises:
        ValueError: the set is endless, has none for the split, or one needs verifiers' runtime.
    """
    taskset, tasks = env_type.taskset(split), []
    if not taskset.bounded:
        raise ValueError(f"{env_type.__name__}: the task set is endless: .take(1000) of it")
    for task in taskset:
        hooks = [*task.hooks("reward"), *task.hooks("metric")]
        runtime = [hook.__name__ for hook in hooks if _needs_runtime(hook)]
        if task.NEEDS_CONTAINER or type(task).toolsets(task.config) or runtime:
            needs = ", ".join(runtime) or "its tools or container"
            raise ValueError(f"{env_type.__name__}: {type(task).__name__} needs a runtime: {needs}")
        if not env_type.hashed or split_of(Row("", {}), task.key) == split:
            tasks.append(task)
    if not tasks:
        raise ValueError(f"{env_type.__name__}: no tasks in split {split!r}")
    return tasks


def _needs_runtime(hook: Any) -> bool:
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is parameter.empty
