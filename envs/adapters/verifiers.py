"""Adapter for task sets of verifiers (``pip install verifiers``, its ``v1``).

Subclass :class:`VerifiersEnv`, name the task set, and register the class. The first observation is
the task's prompt. At the end, the task's rewards and metrics score the whole conversation, each
under its own name. Episodes have one turn, or several if the subclass defines ``user``. Limits:

- tasks that need verifiers' runtime (tool servers, containers, rewards with a runtime) raise an
  error, because their scores would differ without it;
- a hash of a task's key selects its split, unless the subclass has a task set for each split;
- all rewards come at the end, and a long computation blocks the event loop;
- forks and snapshots need a task that can be pickled; otherwise they raise ``NotForkable``;
- the subclass declares ``reward_range``, ``reward_floor`` and a gold policy.
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
    """An episode: the task and the messages."""

    task: Any
    messages: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of a role ("user" or "assistant") and a text."""


class VerifiersEnv(TextEnv[Any, Conversation]):
    """A task set of verifiers. Abstract: a subclass names the task set."""

    hashed: ClassVar[bool] = True
    """Whether a hash divides the tasks of ``taskset`` among the splits. If False, ``taskset``
    itself returns a different task set for each split."""

    def __init__(self, options: EnvOptions, services: Mapping[str, Any] | None = None) -> None:
        kind: Any = type(self)
        super().__init__(options, split_tasks(kind, options.split), services)

    @classmethod
    def taskset(cls, split: str) -> Any:
        """The task set with a split's tasks; called once per process."""
        raise NotImplementedError

    def user(self, conversation: Conversation) -> str | None:
        """The user's reply to the agent's last message, or None to end the conversation."""
        return None

    def begin(self, task: Any) -> str:
        """The task's system prompt and prompt."""
        first = "\n\n".join(filter(None, [task.data.system_prompt, task.data.prompt_text]))
        self.state = Conversation(task, [("user", first)])
        return first

    async def turn(self, action: Action) -> Reply:
        """Reply as the user, or end the episode and score the conversation."""
        state = self.state
        state.messages.append(("assistant", str(action)))
        said = self.user(state)
        if said is not None and self.turns_left > 1:
            state.messages.append(("user", said))
            return go_on(said)
        trace = trace_of(state)
        try:
            await state.task.score(trace)
        # verifiers passes on any exception of a task.
        except Exception as error:
            raise EnvFailure(f"{self._name}: {error}", retryable=False) from error
        rewards = {name: reward.value for name, reward in trace.rewards.items()}
        scores = dict(trace.metrics)
        if said is not None:
            return cut(StopReason.TURN_LIMIT, rewards, scores=scores)
        return finish(rewards, scores=scores)


def trace_of(conversation: Conversation) -> Any:
    """The conversation as a trace of verifiers, from which a task computes its rewards."""
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
        ValueError: the set is endless, has no tasks of the split, or has a task that needs a
            runtime.
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
