"""Adapter for task sets of verifiers (``pip install verifiers``, its ``v1``).

Subclass :class:`VerifiersEnv`, name the task set, and register the class. A task's system prompt is
the system message, and its prompt is the first observation; a prompt of several messages is shown
with their roles. An episode has one turn, or several if the subclass defines ``user``. A task's
``setup`` precedes the first turn; ``@stop`` ends an episode; ``finalize``, rewards, metrics and
judges follow the last turn, each reward under its own name. Limits:

- tasks that need anything else of verifiers (a runtime, tool servers, ``@intercept``, see
  ``needs``) raise an error when they are loaded, because they would be scored differently here;
- a hash of a task's content selects its split (see ``content_key``), unless the subclass has a task
  set for each split;
- the trace that rewards read has no counts of tokens and no times, and messages hold a model's
  reasoning as part of their content;
- ``vf.verify_boxed_math_answer`` gives 0 to every answer outside the main thread, in which
  ``reset`` and ``step`` score. ``areset`` and ``astep`` score in the thread of the event loop;
- a long computation blocks the event loop;
- forks and snapshots need a task that can be pickled; otherwise they raise ``NotForkable``;
- the subclass declares ``reward_range``, ``reward_floor`` and a gold policy.
"""

from __future__ import annotations

import asyncio
import dis
import functools
import inspect
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from envs.adapters.foreign import library, read_messages
from envs.datasets import Row, split_of
from envs.env import EnvOptions, TextEnv
from envs.episode import Action, EnvFailure, Reply, StopReason, cut, finish, go_on

_OF_RUNTIMES = (
    "image", "workdir", "agent_user", "skills", "network_allow", "network_block", "artifacts",
    "resources",
)  # fmt: skip
"""Fields of a task's data that describe its runtime."""
_NAMES = {"idx", "id", "name", "description"}
"""Fields of a task's data that name the task and are no part of its content."""


def _vf(part: str = "") -> Any:
    """The package, or one of its modules."""
    return library(f"verifiers.v1{part}", "verifiers")


@dataclass(slots=True)
class Conversation:
    """An episode: the task, its trace, and the messages that await the agent's answer."""

    task: Any
    trace: Any
    asked: list[Any] = field(default_factory=list)

    @property
    def messages(self) -> list[tuple[str, str]]:
        """Pairs of a role ("system", "user" or "assistant") and a text."""
        text = _vf(".types").content_text
        return [(one.role, text(one.content)) for one in [*self.trace.messages, *self.asked]]

    def commit(self, response: Any = None) -> None:
        """Add what was asked to the trace, and the agent's response if there is one."""
        messages = [*self.trace.messages, *self.asked]
        turn = _vf(".graph").prepare_turn(self.trace, messages)
        if response is None:
            turn.commit_prompt()
        else:
            call = _vf().ModelCall(node=turn.commit(response), finish_reason=response.finish_reason)
            self.trace.calls.append(call)
        self.asked = []


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
        """The user's reply to the agent's last message, or None to end the conversation.

        If a task has no prompt, the user opens the conversation.
        """
        return None

    async def begin(self, task: Any) -> str:
        """Set the task up and return its prompt. Its system prompt becomes the system message."""
        state = self.state = Conversation(task, new_trace(task))
        async with self._hooks(task.data.timeout.setup):
            await _invoke(task.setup, state.trace)
        messages = opening(task.data)
        if task.data.prompt is None:
            said = self.user(state)
            if said is None:
                raise EnvFailure(
                    f"{self._name}: user must open a task that has no prompt", retryable=False
                )
            messages.append(_vf().UserMessage(content=said))
        if not await self._ask(messages):
            stop = state.trace.stop_condition
            raise EnvFailure(f"{self._name}: {stop} stops it before a turn", retryable=False)
        system, first = read_messages(state.messages)
        self.system_prompt = system or type(self).system_prompt
        return first

    async def turn(self, action: Action) -> Reply:
        """Reply as the user, or end the episode and score the conversation."""
        state, vf = self.state, _vf()
        cut_off = action.finish_reason in ("length", "context_full")
        response = vf.Response(
            id="", created=0, model="", message=vf.AssistantMessage(content=str(action)),
            finish_reason="length" if cut_off else "stop",
        )  # fmt: skip
        async with self._hooks():
            _, _, stop = await self._session().rewrite_response(response)
        state.commit(response)
        if stop is not None:
            state.trace.stop(stop)
            return await self._end()
        said = self.user(state)
        if said is None:
            has_user = type(self).user is not VerifiersEnv.user
            state.trace.stop("user_closed" if has_user else "agent_completed")
            return await self._end()
        if await self._ask([vf.UserMessage(content=said)]):
            return go_on(said)
        return await self._end()

    async def _ask(self, messages: list[Any]) -> bool:
        """Ask the agent, unless the turn limit or a ``@stop`` of the task stops the trace."""
        state, session = self.state, self._session()
        async with self._hooks():
            if state.trace.stop_condition or await session.refused():
                return False
            state.asked = messages
            request = _vf().Request(messages=[*state.trace.messages, *messages])
            _, _, stop = await session.rewrite_request(request)
        if stop is not None:
            state.commit()
            state.trace.stop(stop)
        return stop is None

    async def _end(self) -> Reply:
        """Finalize and score the trace."""
        task, trace = self.state.task, self.state.trace
        async with self._hooks(task.data.timeout.finalize):
            await _invoke(task.finalize, trace)
        async with self._hooks(task.data.timeout.scoring):
            await task.score(trace)
        trace.ok = True
        rewards = {name: one.value for name, one in trace.rewards.items() if one is not None}
        scores = {name: value for name, value in trace.metrics.items() if value is not None}
        if trace.stop_condition == "max_turns":
            return cut(StopReason.TURN_LIMIT, rewards, scores=scores)
        return finish(rewards, scores=scores)

    def _session(self) -> Any:
        """Verifiers' own checks between the turns of this episode."""
        return session_of(self.state.task, self.state.trace, self.options.max_turns)

    @asynccontextmanager
    async def _hooks(self, limit_s: float | None = None) -> AsyncIterator[None]:
        """Run code of the task within its time limit; an exception becomes an EnvFailure."""
        try:
            async with asyncio.timeout(limit_s):
                yield
        # verifiers passes on any exception of a task.
        except Exception as error:
            said = f"{self._name}: {type(error).__name__}: {error}"
            raise EnvFailure(said, retryable=False) from error


def _invoke(hook: Any, trace: Any) -> Any:
    return _vf(".utils.decorators").invoke(hook, {"trace": trace, "runtime": None})


def new_trace(task: Any) -> Any:
    """An empty trace of verifiers, with the task's type of state."""
    vf, state = _vf(), _vf(".state").state_cls(type(task))()
    described = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
    return vf.Trace(task=described, agent=vf.AgentInfo(config=vf.AgentConfig()), state=state)


def session_of(task: Any, trace: Any, max_turns: int | None = None) -> Any:
    """Verifiers' session of a trace, which checks the turn limit and the task's ``@stop`` hooks.

    Raises:
        TypeError: a hook's annotations do not say what it reads.
    """
    vf, module = _vf(), _vf(".session")
    stops: dict[Any, list[Any]] = {vf.Trace: [], vf.Request: [], vf.Response: []}
    for hook in task.hooks("stop"):
        stops[module.hook_boundary(hook, allow_trace=True)].append(hook)
    return module.RolloutSession(
        ctx=None, trace=trace, limits=module.RolloutLimits(max_turns=max_turns),
        trace_stops=stops[vf.Trace], request_stops=stops[vf.Request],
        response_stops=stops[vf.Response],
    )  # fmt: skip


def opening(data: Any) -> list[Any]:
    """The messages of a task's system prompt and prompt."""
    vf, system, prompt = _vf(), data.system_prompt, data.prompt
    first = [] if system is None else [vf.SystemMessage(content=system)]
    rest = [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt or []
    return [*first, *rest]


@functools.cache
def split_tasks(env_type: Any, split: str) -> list[Any]:
    """The tasks of a ``VerifiersEnv`` that belong to ``split``; loaded once per process.

    Raises:
        ValueError: the set is endless, has no tasks of the split, or has a task that needs what
            the adapter lacks.
    """
    taskset, tasks, name = env_type.taskset(split), [], env_type.__name__
    if not isinstance(taskset, _vf().Taskset):
        raise ValueError(f"{name}.taskset must return a Taskset of verifiers.v1, not {taskset!r}")
    if not taskset.bounded:
        raise ValueError(f"{name}: the task set is endless: .take(1000) of it")
    if type(taskset).toolsets(taskset.config):
        raise ValueError(f"{name}: {type(taskset).__name__} needs tool servers: toolsets")
    has_user = env_type.user is not VerifiersEnv.user
    checked: dict[type, Any] = {}
    for task in taskset:
        found = [*needs(task, has_user)]
        if checked.get(type(task)) != task.config:
            checked[type(task)] = task.config
            found += needs_of_type(task)
        lacking = [f"{what}: {', '.join(names)}" for what, names in found if names]
        if lacking:
            raise ValueError(
                f"{name}: {type(task).__name__} needs {'; '.join(lacking)}: the adapter has none, "
                f"so give it tasks without"
            )
        if not env_type.hashed or split_of(Row("", {}), content_key(task)) == split:
            tasks.append(task)
    if not tasks:
        raise ValueError(f"{name}: no tasks in split {split!r}")
    return tasks


def content_key(task: Any) -> str:
    """The key that selects a task's split: its own, or else its content without its names.

    verifiers' default key contains the task's position, which would divide equal questions.
    """
    if type(task).key is not _vf().Task.key:
        return str(task.key)
    content = task.data.model_dump(mode="json", exclude_none=True, exclude=_NAMES)
    return str(_vf(".task").task_key(content))


def needs(task: Any, has_user: bool) -> Iterator[tuple[str, list[str]]]:
    """What a task's data need that the adapter lacks: a description, and the fields' names."""
    data, plain = task.data, _plain_data()
    of_runtime = (name for name in _OF_RUNTIMES if getattr(data, name) != getattr(plain, name))
    yield "a runtime", [*of_runtime]
    yield "a time limit of the agent", ["timeout.agent"] if data.timeout.agent is not None else []
    yield "a user", [] if has_user or data.prompt is not None else ["prompt"]
    messages = opening(data)
    lists = [message.content for message in messages if isinstance(message.content, list)]
    images = any(part.type == "image_url" for parts in lists for part in parts)
    yield "images", ["prompt"] if images else []
    calls = any(one.role == "tool" or getattr(one, "tool_calls", None) for one in messages)
    yield "calls of tools", ["prompt"] if calls else []
    yield "scoring elsewhere", ["scoring_deferred"] if task.scoring_deferred else []


def needs_of_type(task: Any) -> Iterator[tuple[str, list[str]]]:
    """What the hooks of a task's type and configuration need that the adapter lacks."""
    vf, kind = _vf(), type(task)
    scorers = [(hook.__name__, hook) for name in ("reward", "metric") for hook in task.hooks(name)]
    scorers += [(judge.reward_name, judge.score) for judge in task.plugged_judges()]
    yield (
        "a runtime",
        [
            *(name for name, hook in scorers if _requires_runtime(hook)),
            *(hook.__name__ for hook in (task.setup, task.finalize) if _reads_runtime(hook)),
            *(["NEEDS_CONTAINER"] if kind.NEEDS_CONTAINER else []),
            *(["runtime_env"] if kind.runtime_env is not vf.Task.runtime_env else []),
        ],
    )
    yield "tool servers", ["toolsets"] if kind.toolsets(task.config) else []
    intercepts = _vf(".utils.decorators").discover_decorated(task, "intercept")
    yield "rewritten messages", [hook.__name__ for hook in intercepts]
    try:
        session_of(task, None)
    except (TypeError, NameError) as error:
        yield "annotated hooks", [str(error)]


@functools.cache
def _plain_data() -> Any:
    return _vf().TaskData()


def _requires_runtime(hook: Any) -> bool:
    parameter = inspect.signature(hook).parameters.get("runtime")
    return parameter is not None and parameter.default is parameter.empty


def _reads_runtime(hook: Any) -> bool:
    """Whether a hook uses the runtime that it is passed; the signature of ``setup`` names one."""
    if not _requires_runtime(hook):
        return False
    reads = (one.argval for one in dis.get_instructions(inspect.unwrap(hook)))
    return any("runtime" in (name if isinstance(name, tuple) else [name]) for name in reads)
