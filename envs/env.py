"""The base class of environments: a subclass defines a text episode once, for two APIs.

A subclass of :class:`TextEnv` has ``tasks`` and defines ``begin``, which returns a task's first
observation, and ``turn``, which returns the reply to an action. Either may be ``async``. The base
class provides seeding, tasks, checks of call order, the turn limit, snapshots, and two APIs.
"""

from __future__ import annotations

import copy
import functools
import inspect
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, ClassVar, Generic, Self, TypeVar

import gymnasium
import numpy as np

from envs.base import author_calls
from envs.base.deadlines import bounded
from envs.base.loop import loop_thread
from envs.base.loop_watch import held_account as held_account
from envs.base.loop_watch import watch_loop
from envs.base.loop_watch import watches_ended as watches_ended
from envs.base.progress import Progress, not_a_text
from envs.base.services import ServiceLease, ServiceOpener
from envs.base.spaces import Unicode
from envs.episode import Action, NotForkable, OrderError, Reply, StepResult, as_action
from envs.episode import Snapshot as Snapshot
from envs.options import Card
from envs.options import EnvOptions as EnvOptions
from envs.options import Tasks as Tasks
from envs.record import EpisodeId, ToolTap
from envs.token_budget import draw_budget, sentence_of

TaskT = TypeVar("TaskT")
StateT = TypeVar("StateT")
T = TypeVar("T")
_plain = str.__new__
"""Creates an :class:`Action` without a finish reason, three times as fast as calling the class."""


class TextEnv(gymnasium.Env[str, str], Generic[TaskT, StateT]):
    """Base class of every environment: text in, text out, for up to ``max_turns`` turns.

    Args:
        options: a frozen dataclass of plain values, derived from :class:`EnvOptions`.
        tasks: the tasks, one for each episode. ``reset(options={"task": i})`` selects one.
        services: shared services that the caller owns (a sandbox, a retriever). If None, the
            environment opens services of its own at first use and closes them in ``close``.
    """

    Options: ClassVar[type[EnvOptions]] = EnvOptions
    """Type of the options; ``envs.make`` and the command line read its fields."""
    env_id: str = ""
    """The registered id. ``envs.make`` sets it."""
    system_prompt: str | None = None
    """Rules for every task. They become the system message."""
    stop: tuple[str, ...] = ()
    """Stop strings. Generation, and the text that ``turn`` receives, end at the first one."""
    continues: bool = False
    """Where an observation is inserted. True: into the agent's message, which then continues.
    False: into a separate message."""
    prefill: str = ""
    """Text with which each of the agent's messages begins, for example an opening tag. The agent
    does not generate it, and the texts that ``turn`` receives begin after it."""
    tool_schemas: tuple[Mapping[str, Any], ...] = ()
    """Tools that the model's chat template lists in the prompt, in OpenAI's format."""
    role: str = ""
    """The role that acts next, in episodes with several roles; ``begin`` and ``turn`` set it. Each
    role's conversation starts with ``system_prompt``."""
    roles: tuple[str, ...] = ()
    """All roles of its episodes, so that ``partner.role`` can name one."""
    blocking: ClassVar[bool] = False
    """Whether non-async ``begin`` and ``turn`` block; the asynchronous API then uses a thread."""
    forkable: bool = True
    """Whether ``state`` can be copied. False, for example, if it is a session of a web service."""
    max_invalid_actions: int = 3
    """Number of consecutive invalid actions that end an episode, if the environment counts them."""
    card: ClassVar[Card] = Card()
    """The environment's row in ``python -m envs list``. The class supplies empty fields."""
    success_score: ClassVar[str] = ""
    """Name of the score that measures success. If empty, the return measures success."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """Lowest and highest return of an episode."""
    reward_floor: float = 0.0
    """Upper bound of the return that an empty or random text earns. ``check_env`` tests it."""
    floor_waiver: str = ""
    """Reason why ``reward_floor`` exceeds 30% of the range; empty if the floor is lower."""
    tool_tap: ToolTap = ToolTap()
    """Records the calls of tools, or answers them from a record; see ``envs.record``."""

    state: StateT
    """The episode's state: data that can be pickled. ``begin`` sets it, ``turn`` changes it."""

    def __init__(
        self,
        options: EnvOptions,
        tasks: Tasks[TaskT],
        services: Mapping[str, Any] | None = None,
    ) -> None:
        if len(tasks) == 0:
            raise ValueError(f"{type(self).__name__}: split {options.split!r} has no tasks")
        self.options = options
        self.tasks = tasks
        self.observation_space = Unicode()
        self.action_space = Unicode()
        self._budget_rule = options.token_budget
        kind = type(self)
        opener = ServiceOpener(kind.__name__, functools.partial(kind.open_services, options))
        self._lease = ServiceLease(opener, services)
        self._progress: Progress | None = None

    # ---- methods that a subclass defines ---------------------------------------------------

    def begin(self, task: TaskT) -> str | Awaitable[str]:
        """Start the episode of ``task``: set ``self.state`` and return the first observation.

        Draw random numbers only from ``self.np_random``.
        """
        raise NotImplementedError

    def turn(self, action: Action) -> Reply | Awaitable[Reply]:
        """The reply to ``action``: :func:`go_on`, :func:`finish` or :func:`cut`."""
        raise NotImplementedError

    def gold_policy(self) -> Callable[[str], str]:
        """A policy for one episode that earns the greatest return.

        The policy maps observations to actions. It must use only information that an agent sees.
        """
        raise NotImplementedError(f"{type(self).__name__} has no gold_policy: write one")

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """An imperfect policy for one episode, which warm starts imitate.

        The policy can use the task and ``self.state``. Its errors leave room for learning.
        """
        raise NotImplementedError

    def best_return(self, task_index: int) -> float:
        """The return of a correct episode of a task; by default the maximum of ``reward_range``."""
        return self.reward_range[1]

    def difficulty(self, task_index: int) -> float:
        """A task's difficulty from 0 to 1, for curricula. Not every environment defines it."""
        raise NotImplementedError

    @classmethod
    @asynccontextmanager
    async def open_services(cls, options: EnvOptions) -> AsyncIterator[Mapping[str, Any]]:
        """Open the services that all episodes with these options share.

        The end of the context closes the services. Every split uses the same services.
        """
        yield {}

    # ---- methods that a subclass may call --------------------------------------------------

    @property
    def turns_left(self) -> int:
        """Number of actions left, including the current one."""
        return self.options.max_turns - self._running().turns

    async def service(self, name: str) -> Any:
        """The shared service called ``name``. The first use opens it, unless the caller did."""
        return await self.tool_tap.find(name, self._lease)

    @property
    def episode_id(self) -> EpisodeId:
        """Id from which a replay starts this episode; in a mixture, the id of the part's episode.

        Raises:
            OrderError: no episode was started.
        """
        progress = self._running()
        return EpisodeId(self.env_id, self.options, progress.task_index, progress.seed)

    # ---- the synchronous API: Gymnasium's --------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode of the task ``options={"task": i}``, or else of a random task.

        Raises:
            ValueError: an option is unknown, or the task index is out of range.
        """
        observation = self.begin(self._start(seed, options))
        if not isinstance(observation, str) and inspect.isawaitable(observation):
            observation = self._wait(observation)
        return self._started(observation)

    def step(self, action: str) -> StepResult:
        """Take one action.

        Raises:
            OrderError: no episode was started, or the episode is over.
            TypeError: the action is not a str; the episode continues.
            EnvFailure: infrastructure failed; the episode has no reward.
        """
        progress = self._progress
        if progress is None or progress.over:
            raise self._out_of_order()
        act = _plain(Action, action) if type(action) is str else as_action(self, action)
        # Over until settled: a turn that raises, or is cancelled, ends the episode.
        progress.over = True
        reply = self.turn(act)
        if type(reply) is not Reply and inspect.isawaitable(reply):
            reply = self._wait(reply)
        return progress.settle(reply, self.options.max_turns, self)

    def close(self) -> None:
        """Close the services that the environment opened."""
        if self._lease.opened:
            loop_thread.run(self.aclose())
        else:
            self._lease.release()

    # ---- the asynchronous API --------------------------------------------------------------

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Asynchronous form of :meth:`reset`; runs on the caller's event loop."""
        task = self._start(seed, options)
        watch_loop()
        observation = author_calls.call(self.begin, task, self.blocking)
        if not isinstance(observation, str) and inspect.isawaitable(observation):
            observation = await bounded(observation, self, self.options.step_timeout_s)
        return self._started(observation)

    async def astep(self, action: str) -> StepResult:
        """Asynchronous form of :meth:`step`; runs on the caller's event loop."""
        progress = self._progress
        if progress is None or progress.over:
            raise self._out_of_order()
        act = _plain(Action, action) if type(action) is str else as_action(self, action)
        progress.over = True
        watch_loop()
        reply = author_calls.call(self.turn, act, self.blocking)
        if type(reply) is not Reply and inspect.isawaitable(reply):
            reply = await bounded(reply, self, self.options.step_timeout_s)
        return progress.settle(reply, self.options.max_turns, self)

    async def aclose(self) -> None:
        """Asynchronous form of :meth:`close`; runs on the caller's event loop."""
        await self._lease.close()

    # ---- copies ----------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """A copy of the episode between two turns, including its random generator.

        Raises:
            NotForkable: the state cannot be copied.
            OrderError: no episode was started.
        """
        if not self.forkable:
            raise NotForkable(f"{self._name}: its state cannot be copied")
        progress = self._running()
        if "state" not in vars(self):
            raise NotForkable(f"{type(self).__name__}.begin must set self.state to be copied")
        dialogue = (self.role, self.system_prompt, self.stop, self.continues, self.prefill)
        frozen = (progress, self.state, self.np_random, dialogue)
        try:
            return Snapshot(self.env_id, pickle.dumps(frozen))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            raise NotForkable(
                f"{type(self).__name__}.state does not pickle ({error}): keep plain data in it, "
                f"or set forkable = False"
            ) from error

    def restore(self, snapshot: Snapshot) -> None:
        """Continue from a snapshot of an environment with the same id and options.

        Raises:
            ValueError: the snapshot comes from an environment with another id.
        """
        if snapshot.env_id != self.env_id:
            raise ValueError(f"{self.env_id!r} cannot restore a snapshot of {snapshot.env_id!r}")
        self._progress, self.state, self.np_random, dialogue = pickle.loads(snapshot.payload)
        self.role, self.system_prompt, self.stop, self.continues, self.prefill = dialogue

    def fork(self, reseed: int | None = None) -> Self:
        """A copy of the environment in the same state. ``reseed`` seeds the copy's generator."""
        snapshot, twin = self.snapshot(), self._twin()
        twin.restore(snapshot)
        if reseed is not None:
            gymnasium.Env.reset(twin, seed=reseed)
        return twin

    async def asnapshot(self) -> Snapshot:
        """Asynchronous form of :meth:`snapshot`. An override can await the state of tools."""
        return self.snapshot()

    async def arestore(self, snapshot: Snapshot) -> None:
        """Asynchronous form of :meth:`restore`."""
        self.restore(snapshot)

    async def afork(self, reseed: int | None = None) -> Self:
        """Asynchronous form of :meth:`fork`."""
        snapshot, twin = await self.asnapshot(), self._twin()
        await twin.arestore(snapshot)
        if reseed is not None:
            gymnasium.Env.reset(twin, seed=reseed)
        return twin

    def group(self, num_members: int) -> list[Self]:
        """``num_members`` copies without an episode. Equal seeds and tasks start equal episodes."""
        return [self._twin() for _ in range(num_members)]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the options and the episode. The unpickled copy opens its own services."""
        snapshot = None if self._progress is None else self.snapshot()
        return _revived, (type(self), self.options, self.env_id, snapshot)

    # ---- internals -------------------------------------------------------------------------

    def _twin(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._progress = None
        twin._lease = self._lease.share()
        twin.tool_tap = self.tool_tap.fork()
        # A shallow copy would share the generator.
        twin._np_random = copy.deepcopy(self._np_random)
        return twin

    def _running(self) -> Progress:
        if self._progress is None:
            raise self._out_of_order()
        return self._progress

    def _start(self, seed: int | None, options: dict[str, Any] | None) -> TaskT:
        if seed is not None:
            super().reset(seed=seed)
        chosen = None
        if options:
            unknown = options.keys() - {"task"}
            if unknown:
                raise ValueError(f"unknown reset option {sorted(unknown)[0]!r}; known: 'task'")
            chosen = options["task"]
        count = len(self.tasks)
        index = int(self.np_random.integers(count)) if chosen is None else chosen
        if not isinstance(index, int) or not 0 <= index < count:
            raise ValueError(f"task ({index!r}) must be an int from 0 to {count - 1}")
        rule, given = self._budget_rule, self.options
        budget = draw_budget(rule, given.split, given.seed, index) if rule else None
        self._progress = Progress(index, seed, budget)
        return self.tasks[index]

    def _started(self, observation: str) -> tuple[str, dict[str, Any]]:
        if not isinstance(observation, str):
            raise not_a_text(self, "begin", observation)
        progress = self._running()
        progress.over = False
        if progress.budget is not None:
            observation += sentence_of(progress.budget)
        return observation, {"task": progress.task_index}

    def _out_of_order(self) -> OrderError:
        if self._progress is None:
            return OrderError(f"{self._name}: call reset before step")
        what = "the episode is over, or a step of it is still running"
        return OrderError(f"{self._name}: {what}: call reset, or await the step")

    def _wait(self, pending: Awaitable[T]) -> T:
        try:
            return loop_thread.run(bounded(pending, self, self.options.step_timeout_s))
        except RuntimeError:
            # The loop thread refused it; an unstarted coroutine warns unless closed.
            if inspect.iscoroutine(pending):
                pending.close()
            raise

    def __str__(self) -> str:
        """The name used in messages: the id or, if there is none, the name of the class."""
        return self.env_id or type(self).__name__

    @property
    def _name(self) -> str:
        return str(self)


def _revived(
    kind: type[TextEnv[Any, Any]], options: EnvOptions, env_id: str, snapshot: Snapshot | None
) -> TextEnv[Any, Any]:
    build: Any = kind
    env: TextEnv[Any, Any] = build(options, services=None)
    env.env_id = env_id
    if snapshot is not None:
        env.restore(snapshot)
    return env
