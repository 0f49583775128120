"""Tasks of verifiers as ours, and an episode as the trace that their rewards read."""

from __future__ import annotations

import functools
import inspect
from dataclasses import dataclass, field
from typing import Any

from envs.adapters.foreign import library
from envs.datasets import Row
from envs.splits import split_of


@dataclass(slots=True)
class Conversation:
    """An episode: the task, and who said what."""

    task: Any
    messages: list[tuple[str, str]] = field(default_factory=list)
    """Roles ("user", "assistant") and texts."""


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
    told = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    agent = vf.AgentInfo(config=vf.AgentConfig())
    return vf.Trace(task=told, agent=agent, nodes=nodes, state=state, is_completed=True, ok=True)


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
