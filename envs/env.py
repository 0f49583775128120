"""The contract of an environment: one text episode, written once, stepped in two faces.

An author subclasses :class:`TextEnv`, gives it ``tasks`` and writes ``begin`` (a task's first
observation) and ``turn`` (what an action leads to), plain or ``async``. The base class owns
seeding, the choice of the task, order, the turn limit, snapshots, and both faces: Gymnasium's
``reset``/``step``, and ``areset``/``astep`` that rollouts use. Tokens do not exist here.
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
"""Makes an :class:`Action` that carries no reason, in a third of the time."""


class TextEnv(gymnasium.Env[str, str], Generic[TaskT, StateT]):
    """Base class of every environment: text in, text out, over up to ``max_turns`` turns.

    Args:
        options: plain values; a frozen dataclass derived from :class:`EnvOptions`.
        tasks: what an episode is about; ``options={"task": i}`` of a reset picks one.
        services: what episodes share and somebody else owns (a sandbox, a retriever). None: the
            environment opens its own at the first asynchronous turn and closes it with itself.
    """

    Options: ClassVar[type[EnvOptions]] = EnvOptions
    """The options' type; ``envs.make`` and the command line read its fields."""
    env_id: str = ""
    """The registered id; set by ``envs.make``."""
    system_prompt: str | None = None
    """Rules that hold for every task; rendered as the system message."""
    stop: tuple[str, ...] = ()
    """Stop strings: generation halts there, and the text that ``turn`` sees ends there."""
    continues: bool = False
    """True: an observation continues the agent's own message (a result put back in place);
    False: it is a message of its own."""
    prefill: str = ""
    """What each of the agent's messages begins with, given to it: a tag that a prompt opens. The
    texts that ``turn`` sees begin behind it."""
    tool_schemas: tuple[Mapping[str, Any], ...] = ()
    """Tools that the model's chat template shows it, as APIs list them."""
    role: str = ""
    """Who takes the next action, where several do: each role is a conversation of its own, begun
    with the ``system_prompt`` of then. ``begin`` and ``turn`` set it; the same policy speaks."""
    blocking: ClassVar[bool] = False
    """True: plain ``begin`` and ``turn`` block, so the asynchronous face runs them in a thread."""
    forkable: bool = True
    """False where ``state`` cannot be copied (a live web service)."""
    max_invalid_actions: int = 3
    """For authors that count them; see StopReason.INVALID_ACTIONS."""
    card: ClassVar[Card] = Card()
    """What ``python -m envs list`` says about it, where that does not follow from the class."""
    success_score: ClassVar[str] = ""
    """The score that says an episode succeeded (its mean is the pass rate); "": the return."""
    reward_range: tuple[float, float] = (0.0, 1.0)
    """Least and greatest return of an episode."""
    reward_floor: float = 0.0
    """The most that an empty or random text may earn; ``check_env`` holds the env to it."""
    floor_waiver: str = ""
    """Why the floor lies above 30% of the range, where it does."""
    tool_tap: ToolTap = ToolTap()
    """Hears what tools are asked and answer, or answers itself; see ``envs.record``."""

    _turn_waits: ClassVar[bool] = False
    """Whether ``turn`` is async: then calling it does nothing yet that could block."""

    state: StateT
    """The author's episode state: set in ``begin``, changed in ``turn``, plain picklable data."""

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

    def __init_subclass__(cls) -> None:
        cls._turn_waits = inspect.iscoroutinefunction(cls.turn)

    # ---- what an author writes -------------------------------------------------------------

    def begin(self, task: TaskT) -> str | Awaitable[str]:
        """The first observation of ``task``; sets ``self.state``.

        Randomness comes from ``self.np_random`` and from nowhere else.
        """
        raise NotImplementedError

    def turn(self, action: Action) -> Reply | Awaitable[Reply]:
        """What ``action`` leads to: :func:`go_on`, :func:`finish` or :func:`cut`."""
        raise NotImplementedError

    def gold_policy(self) -> Callable[[str], str]:
        """A policy for one episode that earns the most: from observation to action, in order.

        It may use only what an agent could see.
        """
        raise NotImplementedError(f"{type(self).__name__} has no gold_policy: write one")

    def demonstrator(self, rng: np.random.Generator) -> Callable[[str], str]:
        """An imperfect author for one episode, from observation to action: warm starts imitate it.

        It may use the task and ``self.state``; it errs often enough to leave something to learn.
        """
        raise NotImplementedError

    def best_return(self, task_index: int) -> float:
        """The return of a right episode of a task: the greatest there is, unless overridden."""
        return self.reward_range[1]

    def difficulty(self, task_index: int) -> float:
        """How hard a task is, 0 to 1; a curriculum sorts by it and does not draw the task."""
        raise NotImplementedError

    @classmethod
    @asynccontextmanager
    async def open_services(cls, options: EnvOptions) -> AsyncIterator[Mapping[str, Any]]:
        """Start what all episodes with these options share; closed when the context ends.

        The same services serve every split.
        """
        yield {}

    # ---- what an author may use ------------------------------------------------------------

    @property
    def turns_left(self) -> int:
        """Actions that may still be taken, the one being answered included."""
        return self.options.max_turns - self._running().turns

    async def service(self, name: str) -> Any:
        """The shared service called ``name``; opened now if nobody injected it."""
        return await self.tool_tap.find(name, self._lease)

    @property
    def episode_id(self) -> EpisodeId:
        """What begins the running episode once more; of a mixture, its part's own.

        Raises:
            OrderError: no episode was started.
        """
        progress = self._running()
        return EpisodeId(self.env_id, self.options, progress.task_index, progress.seed)

    # ---- Gymnasium's face ------------------------------------------------------------------

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode. ``options={"task": i}`` picks the task; else the generator draws it.

        Raises:
            ValueError: an unknown option, or a task index out of range.
        """
        answer = self.begin(self._open(seed, options))
        if not isinstance(answer, str) and inspect.isawaitable(answer):
            answer = self._wait(answer)
        return self._opened(answer)

    def step(self, action: str) -> StepResult:
        """Take one action.

        Raises:
            OrderError: before the first reset or after the episode's end.
            TypeError: the action is no text; the episode goes on.
            EnvFailure: infrastructure failed; the episode has no reward.
        """
        progress = self._progress
        if progress is None or progress.over:
            raise self._out_of_order()
        said = _plain(Action, action) if type(action) is str else as_action(self, action)
        # Until it is settled: a turn that raises, or is cancelled, ends the episode.
        progress.over = True
        answer = self.turn(said)
        if type(answer) is not Reply and inspect.isawaitable(answer):
            answer = self._wait(answer)
        return progress.settle(answer, self.options.max_turns, self)

    def close(self) -> None:
        """Give back what the environment opened itself."""
        if self._lease.opened:
            loop_thread.run(self.aclose())
        else:
            self._lease.release()

    # ---- the asynchronous face -------------------------------------------------------------

    async def areset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """As :meth:`reset`, on the caller's loop."""
        answer = author_calls.call(self.begin, self._open(seed, options), self, self.blocking)
        if not isinstance(answer, str) and inspect.isawaitable(answer):
            answer = await bounded(answer, self, self.options.step_timeout_s)
        return self._opened(answer)

    async def astep(self, action: str) -> StepResult:
        """As :meth:`step`, on the caller's loop."""
        progress = self._progress
        if progress is None or progress.over:
            raise self._out_of_order()
        said = _plain(Action, action) if type(action) is str else as_action(self, action)
        progress.over = True
        if self._turn_waits:
            answer = self.turn(said)
        else:
            answer = author_calls.call(self.turn, said, self, self.blocking)
        if type(answer) is not Reply and inspect.isawaitable(answer):
            answer = await bounded(answer, self, self.options.step_timeout_s)
        return progress.settle(answer, self.options.max_turns, self)

    async def aclose(self) -> None:
        """As :meth:`close`, on the caller's loop."""
        await self._lease.close()

    # ---- copies ----------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        """Freeze the episode between two turns, its random generator included.

        Raises:
            NotForkable: the state cannot be copied.
            OrderError: no episode was started.
        """
        if not self.forkable:
            raise NotForkable(f"{self._name}: its state cannot be copied")
        progress = self._running()
        if "state" not in vars(self):
            raise NotForkable(f"{type(self).__name__}.begin must set self.state: copies are its")
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
        """Go on from a snapshot of an environment with the same id and options.

        Raises:
            ValueError: the snapshot is another environment's.
        """
        if snapshot.env_id != self.env_id:
            raise ValueError(f"a snapshot of {snapshot.env_id!r} cannot go on as {self.env_id!r}")
        self._progress, self.state, self.np_random, dialogue = pickle.loads(snapshot.payload)
        self.role, self.system_prompt, self.stop, self.continues, self.prefill = dialogue

    def fork(self, reseed: int | None = None) -> Self:
        """A second environment in the same state; ``reseed`` gives it another future."""
        twin = self._twin()
        twin.restore(self.snapshot())
        if reseed is not None:
            gymnasium.Env.reset(twin, seed=reseed)
        return twin

    async def asnapshot(self) -> Snapshot:
        """As :meth:`snapshot`; live tool state, where an environment has some, is awaited here."""
        return self.snapshot()

    async def arestore(self, snapshot: Snapshot) -> None:
        """As :meth:`restore`."""
        self.restore(snapshot)

    async def afork(self, reseed: int | None = None) -> Self:
        """As :meth:`fork`."""
        twin = self._twin()
        await twin.arestore(await self.asnapshot())
        if reseed is not None:
            gymnasium.Env.reset(twin, seed=reseed)
        return twin

    def group(self, num_members: int) -> list[Self]:
        """Fresh copies that start in the same state when reset with the same seed and task."""
        return [self._twin() for _ in range(num_members)]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled, it is its options and its episode; it opens services of its own."""
        snapshot = None if self._progress is None else self.snapshot()
        return _revived, (type(self), self.options, self.env_id, snapshot)

    # ---- the base class's own work ---------------------------------------------------------

    def _twin(self) -> Self:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin._progress = None
        twin._lease = self._lease.share()
        twin.tool_tap = self.tool_tap.fork()
        # The generator is an object: a shallow copy would share its stream.
        twin._np_random = copy.deepcopy(self._np_random)
        return twin

    def _running(self) -> Progress:
        if self._progress is None:
            raise self._out_of_order()
        return self._progress

    def _open(self, seed: int | None, options: dict[str, Any] | None) -> TaskT:
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

    def _opened(self, observation: str) -> tuple[str, dict[str, Any]]:
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
        return OrderError(
            f"{self._name}: the episode is over, or a step of it is "
            f"still running: call reset, or await the step"
        )

    def _wait(self, answer: Awaitable[T]) -> T:
        try:
            return loop_thread.run(bounded(answer, self, self.options.step_timeout_s))
        except RuntimeError:
            # Refused by the loop thread, it was never begun; closed, it does not warn of that.
            if inspect.iscoroutine(answer):
                answer.close()
            raise

    def __str__(self) -> str:
        """Its id, or its class's name before it has one: what messages call it."""
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
