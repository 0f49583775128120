"""The trainer: the steps of a training run, its validation, tests and checkpoints."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from agents.segment import Segment
from rl.credit.algorithm import Algorithm
from rl.credit.shaping import make_shapings
from rl.credit.shaping.agreement import agreement_metrics
from rl.credit.shaping.record import shape
from rl.errors import RunFailure, UsageError
from rl.learner.checkpoint import load_trainer_state
from rl.learner.seam import Experience, RecordsTokens
from rl.reports.card import write_card
from rl.rollout.async_rollouts import GroupStream
from rl.rollout.curriculum import make_curriculum
from rl.rollout.dynamic_sampling import drop_uninformative, fill
from rl.rollout.episode import outcome_of
from rl.rollout.task_order import TaskOrder
from rl.rollout.trajectory import TrajectoryGroup
from rl.rollout.vine import VineConfig, require_copies
from rl.run.checkpoints import Checkpoints
from rl.run.folder import RunFolder, When
from rl.run.metrics.episodes import part_metrics, staleness_metrics
from rl.run.metrics.intervals import PassRate
from rl.run.process.closing import InTime, at_end
from rl.runtime.runtime import TEST, TRAIN, VALIDATION, Runtime
from rl.runtime.text_segments import text_segments
from rl.settings.train import TrainConfig

logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """State of a run that its checkpoints hold, in addition to the learner's state."""

    step: int = 0
    seconds: float = 0.0
    validation_due: bool = False
    """Whether this step must still be validated."""


@dataclass(frozen=True)
class Best:
    """Step and validation result of the weights in checkpoints/best. Saved beside the weights."""

    step: int = -1
    success: float = -math.inf


class Trainer:
    """Carries out the parts of a training step, one method for each part, on an open runtime.

    Raises:
        UsageError: a setting contradicts the model or the environment.
    """

    def __init__(self, config: TrainConfig, folder: RunFolder, runtime: Runtime) -> None:
        self.config = config
        self.folder = folder
        self.runtime = runtime
        self.shapings = make_shapings(config.shaping)
        self.progress = Progress()
        self.best = Best()
        self._eval_sampling = config.eval.params(config.sampling.max_tokens)
        self._best_path = folder.checkpoints / "best"
        self.learner = runtime.learner
        try:
            self.collector = runtime.collector(
                "train", config.sampling_params, vine_config(config.algo.row)
            )
            env = self.collector.make_env()
            ramp = config.curriculum.ramp_steps or config.steps
            self.curriculum = make_curriculum(
                config.curriculum,
                len(env.tasks),
                config.seed,
                ramp * config.prompts,
                env.difficulty,
            )
        except ValueError as error:
            raise UsageError(str(error)) from error
        self.stream = self._make_stream() if config.staleness else None
        """Plays episodes ahead if groups may be older than the weights; otherwise None."""
        self._env = env
        self._most_tokens = config.sampling.max_tokens * config.env.options.max_turns
        self._window = self.collector.context.limits.context_length
        self._curriculum_state = self.curriculum.state_dict()
        """The curriculum's state after the last update."""
        self._ptx_data: list[Segment] = []
        self.checkpoints = Checkpoints(
            folder.checkpoints, runtime.learner, runtime.thread, folder.backup
        )
        self._thread = runtime.thread
        self._resources = AsyncExitStack()

    @property
    def reward_range(self) -> tuple[float, float]:
        """The least and the greatest return of an episode."""
        return self._env.reward_range

    async def rollout(self, step: int) -> list[TrajectoryGroup]:
        """Play the step's episodes. Groups that the update does not need are marked as dropped."""
        config = self.config
        max_draws, keep = config.curriculum.max_draws, config.curriculum.keep

        async def draw(count: int, number: int) -> list[TrajectoryGroup]:
            key = (config.seed, TRAIN, step, *([number] if number else []))
            tasks = self.curriculum.take(count)
            groups = await self.collector.collect(tasks, config.group_size, key)
            for task, group in zip(tasks, groups, strict=True):
                self._note(task, group)
            return groups

        if self.stream is not None:
            groups = await self.stream.take(step - 1)
            self.collector.check([t for group in groups for t in group.trajectories])
        else:
            groups = await fill(draw, config.prompts, max_draws)
        drop_uninformative(groups, config.prompts, max_draws, keep)
        return groups

    async def shape(self, step: int, groups: list[TrajectoryGroup]) -> dict[str, float]:
        """Add the run's shapings to the rewards of a step's episodes.

        Returns:
            For each shaping that judges answers, how well it agrees with the environment's success.

        Raises:
            RunFailure: a shaping does not give one finite number for each episode, or the algorithm
                needs non-negative rewards.
        """
        active = step >= self.config.shaping_from
        shapings = self.shapings if active else ()
        weight = self.config.reward_weight if active else 1.0
        score, best = self.runtime.success_score, self._env.reward_range[1]
        try:
            # In a thread: judges may take long, and episodes that are played ahead continue.
            await self._thread.do(
                *(shape, shapings, groups, score, best, self._most_tokens, weight, self._window),
                self.config.memory.offload_scorers,
            )
        except ValueError as error:
            raise RunFailure(str(error)) from error
        rewards = [t.shaped_reward for group in groups for t in group.finished]
        advantage = self.config.algo.row.advantage
        if advantage.needs_nonnegative_rewards and min(rewards, default=0.0) < 0:
            raise RunFailure(
                f"algo.advantage={advantage.name} divides by a mean: rewards must be >= 0, one is "
                f"{min(rewards):g}: choose another algo.advantage.std, or rewards without penalties"
            )
        return agreement_metrics(shapings, groups, score)

    async def learn(self, groups: list[TrajectoryGroup]) -> dict[str, float]:
        """Update the weights from the shaped rewards.

        Raises:
            NonFiniteLoss: the loss is not finite; the weights are unchanged.
            BrokenWeights: the update made a weight infinite or NaN.
        """
        await self.checkpoints.settle(wait=False)
        version = self.learner.version
        groups = [group for group in groups if not group.dropped]
        finished = [trajectory for group in groups for trajectory in group.finished]
        for trajectory in finished:
            # Files and checkpoints of earlier versions hold no outcomes.
            if trajectory.outcome is None:
                trajectory.outcome = outcome_of(trajectory, self._env)
        ptx_data = self._ptx_batch(self.progress.step) if self._ptx_data else []
        async with self.runtime.learning():
            metrics = await self.learner.update(Experience(groups, ptx_data), version + 1)
        self._curriculum_state = self.curriculum.state_dict()
        return metrics | await asyncio.to_thread(staleness_metrics, finished, version)

    async def record_tokens(self, step: int, groups: list[TrajectoryGroup]) -> None:
        """Write what the learner computed about the tokens of the step that it just learned.

        Raises:
            RunFailure: the file cannot be written, or the learner's record has other tokens.
        """
        if not self.config.record_tokens or not isinstance(self.learner, RecordsTokens):
            return
        record = await self.learner.token_record(self.learner.version)
        if record is None:
            return
        columns = {field.name: getattr(record, field.name) for field in dataclasses.fields(record)}
        try:
            await asyncio.to_thread(self.folder.write_learner_columns, step, groups, columns)
        except ValueError as error:
            learner = self.config.learner.name
            raise RunFailure(f"learner={learner} recorded other tokens: {error}") from error

    async def publish(self) -> dict[str, float]:
        """Load the current weights into the policy, and return the policy's metrics.

        Raises:
            PolicyFailure: the policy cannot load the weights, or its servers use other weights.
        """
        await self.runtime.publish()
        if self.stream is not None:
            # After the load, so that new episodes start with the new weights.
            self.stream.learned(self.progress.step + 1)
        return self.runtime.policy.take_metrics()

    async def validate(self) -> dict[str, float]:
        """Measure success on validation tasks. Pass the result to :meth:`record_validation`."""
        config = self.config.eval
        rate, groups = await self.runtime.evaluate(
            "validation", config.tasks, VALIDATION, self._eval_sampling
        )
        write, keep = self.folder.write_validation, self.config.keep_episodes
        await asyncio.to_thread(write, self.progress.step, groups, keep)
        return {"eval/success": rate.rate, **part_metrics(groups, "eval/", ("success",))}

    async def record_validation(self, success: float | None) -> None:
        """Save the weights as the best ones if ``success`` is None or the highest so far."""
        if success is None or success > self.best.success:
            await self.checkpoints.settle()
            self.best = Best(self.progress.step, -math.inf if success is None else success)
            await self.learner.save(self._best_path, dataclasses.asdict(self.best))
            await asyncio.to_thread(write_card, self._best_path, self.folder.path)
        self.progress.validation_due = False

    async def test(self, when: When) -> PassRate:
        """Measure success on test tasks, before or after training."""
        tasks = self.config.eval.test_tasks
        rate, groups = await self.runtime.evaluate("test", tasks, TEST, self._eval_sampling)
        await asyncio.to_thread(self.folder.write_test, when, groups)
        return rate

    async def save(self) -> None:
        """Write the checkpoint of the current step; see :meth:`Checkpoints.save`.

        Episodes continue meanwhile, and so can the learner, but the checkpoint holds the state at
        the time of the call. An existing checkpoint of the step has the same weights and is kept.

        Raises:
            RunFailure: this checkpoint, or the one before it, cannot be written.
        """
        await self.checkpoints.settle()
        if self.checkpoints.path(self.progress.step) in self.checkpoints.complete():
            return
        state: dict[str, Any] = {
            "progress": dataclasses.asdict(self.progress),
            "curriculum": self._curriculum_state,
        }
        if self.stream is not None:
            # The stream's own state holds the tasks that were drawn ahead.
            state["curriculum"] = self.curriculum.state_dict()
            state["stream"] = await asyncio.to_thread(self.stream.snapshot().state_dict)
        await self.checkpoints.save(self.progress.step, state)

    async def save_done(self) -> None:
        """Write a checkpoint if any step is done, and wait until it is there."""
        if self.progress.step:
            await self.save()
            await self.checkpoints.settle()

    async def restore(self) -> bool:
        """Continue from the newest usable checkpoint. Returns False if there is none.

        Raises:
            UsageError: there are checkpoints, but none can be used.
        """
        state = await self.checkpoints.load_newest()
        if state is None:
            self.folder.rewind(-1)
            return False
        self.progress = Progress(**state["progress"])
        self.curriculum.load_state_dict(state["curriculum"])
        self._curriculum_state = self.curriculum.state_dict()
        if self.stream is not None:
            self.stream.load_state_dict(state["stream"], self.progress.step)
        await self.runtime.publish()
        self._recall_best()
        self.folder.rewind(self.progress.step)
        return True

    def _ptx_batch(self, steps_done: int) -> list[Segment]:
        """The texts that the next update imitates. Each pass over all texts has a new order."""
        count = self.config.texts.batch_size
        order = TaskOrder(len(self._ptx_data), self.config.seed)
        return [self._ptx_data[i] for i in order.take(steps_done * count, count)]

    def _make_stream(self) -> GroupStream:
        config = self.config

        async def play(number: int, draw: int, task: int) -> TrajectoryGroup:
            step, position = divmod(number, config.prompts)
            key = (config.seed, TRAIN, step + 1, *([draw] if draw else []), position)
            return await self.collector.collect_group(task, config.group_size, key)

        return GroupStream(
            play,
            self.curriculum.take,
            self._note,
            prompts=config.prompts,
            staleness=config.staleness,
            max_draws=config.curriculum.max_draws,
        )

    def _note(self, task: int, group: TrajectoryGroup) -> None:
        """Update the curriculum with the outcomes of a task's episodes."""
        self.curriculum.learn(task, group.outcomes)

    async def load_best(self) -> None:
        """Load the best weights into the model.

        Raises:
            UsageError: the best weights are missing or damaged.
        """
        try:
            await self.learner.load(self._best_path, self.learner.version + 1)
        except ValueError as error:
            raise UsageError(f"the best weights cannot be tested: {error}") from error
        await self.runtime.publish()

    async def __aenter__(self) -> Self:
        await self._resources.enter_async_context(
            self._in_time(self._thread.settle, "the learner's thread")
        )
        await self._resources.enter_async_context(
            self._in_time(self.checkpoints.end, "the writing of a checkpoint")
        )
        self._resources.push_async_callback(self.stop_rollouts)
        if self.collector.vine is not None:
            await require_copies(self.collector.context)
        config = self.config.texts
        if self.config.algo.row.ptx_coef:
            self._ptx_data = await text_segments(self.runtime, config.data, config.demonstrations)
        return self

    async def stop_rollouts(self) -> None:
        """Stop the episodes that are played ahead, because no update will learn from them."""
        if self.stream is not None:
            async with self._in_time(self.stream.close, "the rollouts"):
                pass

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._resources.__aexit__(kind, error, trace)

    def _in_time(self, end: Callable[[], Awaitable[None]], what: str) -> InTime[None]:
        return at_end(end, what, self.runtime.activities, self.config.close_s)

    def _recall_best(self) -> None:
        """Read the record of checkpoints/best, possibly of a step that this resumed run repeats."""
        try:
            self.best = Best(**load_trainer_state(self._best_path))
        except ValueError as error:
            logger.warning(
                "the record of the best weights is unusable, the next validation replaces them: %s",
                error,
            )


def vine_config(algorithm: Algorithm) -> VineConfig | None:
    """The settings of an algorithm's Monte Carlo values, or None if it uses no such values."""
    advantage = algorithm.advantage
    if not advantage.turn_rollouts:
        return None
    return VineConfig(rollouts=advantage.turn_rollouts, gamma_turn=advantage.turn_discount)
