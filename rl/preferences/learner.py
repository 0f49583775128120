"""The learner of preferences: a model in this process, or divided among ranks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Generic, Protocol, TypeVar

import torch
from transformers import PreTrainedTokenizerBase

from agents.segment import Segment
from rl.cluster.cluster import THIS_MACHINE, Cluster
from rl.cluster.opening import open_cluster
from rl.learner.checkpoint import save_checkpoint
from rl.learner.model import load_model, move_if_small
from rl.learner.ranks.learner import check_gpus, open_parts
from rl.learner.ranks.messages import OpenPart
from rl.learner.ranks.processes import RankProcesses
from rl.learner.ranks.saving import Saving
from rl.learner.ranks.world import SOLO, World, nothing
from rl.learner.seam import Host
from rl.learner.settings import LocalLearnerConfig
from rl.preferences.policy_reward import PolicyReward
from rl.preferences.process_rewards import ProcessUpdater
from rl.preferences.reward_model import RewardModel, choose_padding
from rl.preferences.updater import PreferenceUpdater
from rl.settings.finetuning import DPOConfig, RewardModelConfig

T_contra = TypeVar("T_contra", contravariant=True)


@dataclass(frozen=True)
class PreferenceSpec:
    """What a learner of preferences is opened with."""

    config: DPOConfig | RewardModelConfig
    tokenizer: PreTrainedTokenizerBase
    """Saved with the model."""
    device: str
    dtype: str
    """The type in which the model computes."""


class PreferenceLearner(Protocol[T_contra]):
    """A model that learns from rows of preferences or labels, and predicts them.

    Raises:
        LearnerLost: a rank ended; every method raises it then.
    """

    @property
    def context_window(self) -> int:
        """Maximum number of tokens in one sequence."""
        ...

    def update(self, rows: Sequence[T_contra], /) -> dict[str, float]:
        """Make one optimizer step; the returned metrics include ``loss`` and ``accuracy``.

        Raises:
            RunFailure: the loss, the gradient or the weights are not finite.
        """
        ...

    def agreements(self, rows: Sequence[T_contra], /) -> list[float]:
        """Agreement of the model with each label, from 0 to 1."""
        ...

    def rewards(self, segments: Sequence[Segment], /) -> list[float]:
        """The reward of each answer."""
        ...

    def center(self, segments: Sequence[Segment], /) -> float:
        """Shift all rewards so that these answers have mean reward 0, and return the shift."""
        ...

    def save(self, folder: Path, /) -> None:
        """Write the model and its tokenizer.

        Raises:
            RunFailure: they cannot be written.
        """
        ...


class LocalPreferences(Generic[T_contra]):
    """A learner of preferences in this process, which may be one of several ranks.

    See :class:`PreferenceLearner`.

    Args:
        spec: the settings.
        world: the ranks.
        on_progress: called at the start of each forward pass.

    Raises:
        ValueError: the model cannot be loaded, or is of a kind that cannot be trained so.
    """

    def __init__(
        self,
        spec: PreferenceSpec,
        world: World = SOLO,
        on_progress: Callable[[], None] = nothing,
    ) -> None:
        config, dtype = spec.config, getattr(torch, spec.dtype)
        # Ranks divide the model layer by layer on its way to their devices, where it may not fit.
        where = spec.device if world.size == 1 else "cpu"
        model = load_model(config.model, device=where, dtype=dtype)
        if world.size > 1:
            move_if_small(model, spec.device)
        self.context_window: int = model.config.max_position_embeddings
        shared: Any = {"memory": config.memory, "packing": config.packing}
        train: Any = PreferenceUpdater
        self._rewarder: PolicyReward | RewardModel
        if isinstance(config, DPOConfig):
            self._rewarder = PolicyReward(model, config.beta, config.reduction, **shared)
        else:
            self._rewarder = RewardModel.from_causal(model, **shared)
            choose_padding(self._rewarder.model, spec.tokenizer)
            if config.process:
                self._rewarder.of_steps, train = True, ProcessUpdater
        self._updater = train(self._rewarder, config.optimizer, config.micro_batch_tokens, world)
        self._updater.passes.on_pass = on_progress
        self._tokenizer = spec.tokenizer
        self._saving = Saving(self._rewarder.root.model, world, dtype)

    def update(self, rows: Sequence[T_contra]) -> dict[str, float]:
        """Make one optimizer step."""
        metrics: dict[str, float] = self._updater.update(rows)
        return metrics

    def agreements(self, rows: Sequence[T_contra]) -> list[float]:
        """Agreement of the model with each label, from 0 to 1."""
        found: list[float] = self._updater.agreements(rows)
        return found

    def rewards(self, segments: Sequence[Segment]) -> list[float]:
        """The reward of each answer."""
        found: list[float] = self._updater.passes.rewards(segments)
        return found

    def center(self, segments: Sequence[Segment]) -> float:
        """Shift all rewards so that these answers have mean reward 0, and return the shift."""
        assert isinstance(self._rewarder, RewardModel), "a policy's rewards have no shift"
        self._rewarder.bias -= fmean(self.rewards(segments))
        return self._rewarder.bias

    def save(self, folder: Path) -> None:
        """Write the model and its tokenizer."""
        if self._saving.world.size == 1:
            save_checkpoint(folder, self._saving.model, self._tokenizer)
        else:
            self._saving.prepare(folder, self._tokenizer, None, None)()


class _Part:
    """A learner of preferences as one of several ranks; see ``messages.Part``."""

    version = 0

    def __init__(self, spec: PreferenceSpec, host: Host, world: World) -> None:
        self._thread = host.thread
        self._learner = LocalPreferences[Any](spec, world, host.on_progress)
        self.facts = self._learner.context_window

    async def do(self, name: str, *args: Any) -> Any:
        """Call a method of the learner on its thread."""
        return await self._thread.do(getattr(self._learner, name), *args)


class RankedPreferences(Generic[T_contra]):
    """A learner of preferences in ranks, as the command's process sees it.

    See :class:`PreferenceLearner`.
    """

    def __init__(
        self, runner: asyncio.Runner, processes: RankProcesses, context_window: int
    ) -> None:
        self._runner = runner
        self._processes = processes
        self.context_window = context_window

    def update(self, rows: Sequence[T_contra]) -> dict[str, float]:
        """Make one optimizer step."""
        metrics: dict[str, float] = self._do("update", rows)
        return metrics

    def agreements(self, rows: Sequence[T_contra]) -> list[float]:
        """Agreement of the model with each label, from 0 to 1."""
        found: list[float] = self._do("agreements", rows)
        return found

    def rewards(self, segments: Sequence[Segment]) -> list[float]:
        """The reward of each answer."""
        found: list[float] = self._do("rewards", segments)
        return found

    def center(self, segments: Sequence[Segment]) -> float:
        """Shift all rewards so that these answers have mean reward 0, and return the shift."""
        shift: float = self._do("center", segments)
        return shift

    def save(self, folder: Path) -> None:
        """Write the model and its tokenizer, by rank 0."""
        self._do("save", folder)

    def _do(self, name: str, *args: Any) -> Any:
        return self._runner.run(self._processes.call("do", (name, *args)))


@contextmanager
def open_preferences(spec: PreferenceSpec) -> Iterator[PreferenceLearner[Any]]:
    """A learner of preferences, until the context ends.

    Raises:
        ValueError: the model or the machine cannot be used with the settings.
        LearnerLost: a rank ended while it started.
        UsageError: the cluster is unusable.
    """
    settings = spec.config.learner.settings
    if not isinstance(settings, LocalLearnerConfig) or settings.ranks == 1:
        yield LocalPreferences(spec)
        return
    ranks, choice = settings.ranks, spec.config.cluster
    gpus = [int(torch.device(spec.device).type == "cuda")] * ranks
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        try:
            opened = stack.enter_async_context(open_cluster(choice, gpus, ()))
            processes, window = runner.run(_open_ranks(spec, settings, runner.run(opened)))
            stack.push_async_callback(processes.close)
            yield RankedPreferences(runner, processes, window)
        finally:
            runner.run(stack.aclose())


async def _open_ranks(
    spec: PreferenceSpec, settings: LocalLearnerConfig, cluster: Cluster
) -> tuple[RankProcesses, int]:
    if cluster is THIS_MACHINE:
        check_gpus(spec.device, settings.ranks)

    def part(device: str) -> OpenPart:
        return partial(_Part, replace(spec, device=device))

    group = await asyncio.to_thread(cluster.start_ranks, settings.ranks)
    processes = RankProcesses(group, nothing, settings.timeout_s)
    cores = spec.config.num_threads
    return processes, await open_parts(processes, part, spec.device, spec.dtype, cores)
