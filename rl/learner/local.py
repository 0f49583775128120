"""The learner in this process. It owns the model, trains it and writes its checkpoints."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from agents.column import Column
from agents.local.forward.routers import prepare
from rl.errors import RunFailure, UsageError
from rl.learner.checkpoint import load_trainer_state, read_trained_state, save_checkpoint
from rl.learner.lora import (
    adapter_config,
    add_adapter,
    is_adapted,
    load_trained_state,
    trained_state,
)
from rl.learner.memory.offloading import Offloader
from rl.learner.memory.quantization import (
    num_weights,
    quantize_linear_layers,
    round_linear_layers,
)
from rl.learner.model import (
    Infer,
    as_saved,
    load_model,
    move_if_small,
    score_tokens,
    tolerance_of,
)
from rl.learner.ranks.saving import RESTS, Saving, learner_state
from rl.learner.ranks.world import SOLO, World, nothing
from rl.learner.scoring import ScoringModel
from rl.learner.seam import Experience, Host, LearnerSpec, ModelFacts, TokenRecord
from rl.learner.updater import Updater
from rl.rollout.trajectory import TrajectoryGroup


async def open_local(spec: LearnerSpec, host: Host) -> LocalLearner:
    """Open a learner whose model is loaded on ``host.thread``; see ``seam.OpenLearner``."""
    return await host.thread.do(LocalLearner, spec, host)


def load_policy_model(spec: LearnerSpec) -> PreTrainedModel:
    """The model of ``spec`` with its initial weights, for a learner or for a policy.

    Raises:
        ValueError: the model cannot be loaded, or states no context window.
    """
    dtype: torch.dtype = getattr(torch, spec.dtype)
    bits = spec.lora.base_bits
    model = load_model(spec.model, device="cpu" if bits else spec.device, dtype=dtype)
    if getattr(model.config, "max_position_embeddings", None) is None:
        raise ValueError(
            f"model ({spec.model}) is of type {model.config.model_type}, whose config.json states "
            "no context window (max_position_embeddings): use a model with one"
        )
    if bits:
        quantize_linear_layers(model, bits, spec.device)
        model.to(device=spec.device)  # type: ignore[call-arg]
    if spec.lora.rank:
        add_adapter(model, spec.lora, spec.model, spec.seed)
    return model


def save_rounded_base(spec: LearnerSpec, folder: Path) -> None:
    """Write the base model of ``spec.lora.base_bits`` in full precision, with rounded weights.

    Each weight has the value with which the learner of ``spec`` computes, so that a policy that
    loads the folder samples from the learner's base model.

    Raises:
        RunFailure: the folder cannot be written.
    """
    assert spec.lora.base_bits, "the base model is quantised"
    model = load_model(spec.model, device="cpu", dtype=getattr(torch, spec.dtype))
    round_linear_layers(model, spec.lora.base_bits, spec.device)
    save_checkpoint(folder, model, spec.tokenizer)


class LocalWeights:
    """The current weights of a model in this process, without a copy.

    A local policy on the learner's thread samples from ``model`` itself.
    """

    def __init__(self, model: PreTrainedModel, version: int) -> None:
        self.model = model
        self.version = version

    async def tensors(self, *, complete: bool = False) -> Mapping[str, Tensor]:
        """The weights by name; see ``seam.WeightHandle.tensors``."""
        return (
            self.model.state_dict() if complete else _saved(self.model, trained_state(self.model))
        )


class LocalLearner:
    """Learner in this process; see ``seam.Learner``.

    Updates, scores and checkpoints are computed on ``host.thread``.

    Raises:
        ValueError: the model cannot be loaded, or cannot be trained with the spec's settings.
    """

    def __init__(self, spec: LearnerSpec, host: Host, world: World = SOLO) -> None:
        self._world = world
        # Ranks divide the model layer by layer on its way to their devices, where it may not fit.
        where = spec.device if world.size == 1 else "cpu"
        self.model = load_policy_model(replace(spec, device=where))
        self.facts = facts_of(self.model)
        if world.size > 1:
            self.facts = replace(self.facts, device=spec.device)
            move_if_small(self.model, spec.device)
        self.version = 0
        self._saving = Saving(self.model, world, getattr(torch, spec.dtype))
        self._spec = spec
        self._thread = host.thread
        self._metrics: dict[str, float] | None = None
        """Metrics of the update that made the current version, or None if no update made it."""
        self._record: TokenRecord | None = None
        """What that update computed about each token."""
        self._updater: Updater | None = None
        self._offloader: Offloader | None = None
        self._offloaded = False
        if spec.training is not None:
            self._updater = Updater(
                self.model,
                spec.training.algorithm,
                spec.training.optimizer,
                temperature=spec.training.temperature,
                max_tokens_per_micro_batch=spec.training.micro_batch_tokens,
                packing=spec.training.packing,
                memory=spec.training.memory,
                world=world,
            ).seeded(spec.seed)
            if spec.training.replay_routing:
                replay_routing(self._updater.model)
            self._updater.report_progress(host.on_progress)
            self._offloader = Offloader(self._updater)

    async def update(self, experience: Experience, version: int) -> dict[str, float]:
        """Make ``version`` of the weights; see ``seam.Learner.update``."""
        return await self._thread.do(self._update, experience, version)

    async def token_record(self, version: int) -> TokenRecord | None:
        """What an update computed about each token; see ``seam.RecordsTokens``."""
        return self._record if version == self.version else None

    async def score(
        self, token_ids: Sequence[int], temperature: float, supports: Sequence[Sequence[int]] = ()
    ) -> Sequence[float]:
        """The log-probability of each token except the first; see ``seam.Learner.score``."""
        call = (score_tokens, self.model, token_ids, temperature, supports, self._infer)
        return await self._thread.do(*call)

    async def tolerance(self, seed: int) -> float:
        """Largest difference from rounding, in nats; see ``seam.Learner.tolerance``."""
        return await self._thread.do(tolerance_of, self.model, seed, self._infer)

    async def weights(self, version: int) -> LocalWeights:
        """A handle of the weights with this version; see ``seam.Learner.weights``."""
        if version != self.version:
            raise ValueError(f"version ({version}) is not the learner's, {self.version}")
        return LocalWeights(self.model, version)

    async def save(
        self, folder: Path, state: Mapping[str, Any] | None = None, *, resumable: bool = False
    ) -> None:
        """Write a checkpoint; see ``seam.Learner.save``."""
        await asyncio.to_thread(await self.prepare_save(folder, state, resumable=resumable))

    async def prepare_save(
        self, folder: Path, state: Mapping[str, Any] | None = None, *, resumable: bool = False
    ) -> Callable[[], None]:
        """Copy what a checkpoint holds, and return a function that completes it. Collective.

        In a rank, later calls can run meanwhile. Without ranks, nothing is left to complete.
        """
        return await self._thread.do(self._prepare_save, folder, state, resumable)

    async def load(self, folder: Path, version: int | None = None) -> dict[str, Any]:
        """Continue from a checkpoint; see ``seam.Learner.load``."""
        return await self._thread.do(self._load, folder, version)

    async def offload(self) -> None:
        """Move the state that only updates need to the host's memory, and free torch's cache.

        The weights stay on the device, because the policy's weights are verified against them. A
        learner on a CPU does nothing.
        """
        if self.model.device.type == "cuda":
            await self._thread.do(self._offload)

    async def onload(self) -> None:
        """Move the state that :meth:`offload` moved back to the device."""
        if self.model.device.type == "cuda":
            await self._thread.do(self._onload)

    async def close(self) -> None:
        """Wait until running calls are done. The thread keeps running, because ``Host`` owns it."""
        await self._thread.settle()

    async def collected(self, *, complete: bool) -> dict[str, Tensor]:
        """The weights of a handle (``seam.WeightHandle.tensors``), on the host. Collective.

        Ranks other than 0 get none.
        """
        state = await self._thread.do(self._collect, complete)
        return state if complete or not state else _saved(self.model, state)

    def _collect(self, complete: bool) -> dict[str, Tensor]:
        state = self.model.state_dict() if complete else trained_state(self.model)
        return self._saving.complete(state)

    @property
    def _infer(self) -> Infer | None:
        """Computes outputs through the root of sharded weights, or None without ranks."""
        if self._world.size == 1 or self._updater is None:
            return None
        return self._updater.model.root.infer

    @property
    def _trained(self) -> Updater:
        if self._updater is None:
            raise ValueError("the learner was opened without training: give LearnerSpec.training")
        return self._updater

    def _update(self, experience: Experience, version: int) -> dict[str, float]:
        if version == self.version and self._metrics is not None:
            return dict(self._metrics)
        if version != self.version + 1:
            raise ValueError(
                f"version ({version}) must be {self.version + 1}: the learner has {self.version}"
            )
        if experience.ptx_data and not experience.groups:
            metrics, record = self._trained.supervised_update(experience.ptx_data), None
        else:
            metrics, record = self._reinforce(experience), self._trained.record
        self.version, self._metrics, self._record = version, metrics, record
        return dict(metrics)

    def _reinforce(self, experience: Experience) -> dict[str, float]:
        if self._trained.model.replays_routing:
            _check_experts(experience.groups)
        metrics = self._trained.update(experience.groups, experience.ptx_data, self.version)
        note_advantages(experience.groups, self._trained.credit)
        return metrics

    def _offload(self) -> None:
        if self._offloader is not None:
            self._offloader.offload()
        self._offloaded = True
        torch.cuda.empty_cache()

    def _onload(self) -> None:
        if self._offloader is not None:
            self._offloader.onload()
        self._offloaded = False

    def _prepare_save(
        self, folder: Path, state: Mapping[str, Any] | None, resumable: bool
    ) -> Callable[[], None]:
        tokenizer = self._spec.tokenizer
        if resumable:
            state = {**(state or {}), "policy_version": self.version}
        if self._world.size > 1:
            updater = self._trained if resumable else None
            return self._saving.prepare(folder, tokenizer, state, updater)
        if resumable:
            state = {**(state or {}), RESTS: self._trained.state_dict()}
        save_checkpoint(folder, self.model, tokenizer, state)
        return nothing

    def _load(self, folder: Path, version: int | None) -> dict[str, Any]:
        only_weights = version is not None
        state = {} if only_weights else load_trainer_state(folder)
        weights = self._read(folder)
        if version is None:
            version = int(state.pop("policy_version"))
            learner = learner_state(folder, state, self._world)
            try:
                self._trained.load_state_dict(learner)
            except ValueError as error:
                raise UsageError(f"{folder}: {error}") from error
        own = trained_state(self.model)
        parts = {name: self._world.part(x, own[name]) for name, x in weights.items()}
        load_trained_state(self.model, parts)
        if not only_weights:
            # The checkpoint's weights may be rounded, and those of ranks are not.
            self._trained.optimizer.load_copies(learner["optimizer"])
        elif self._updater is not None:
            self._updater.optimizer.take_weights()
        self.version, self._metrics, self._record = version, None, None
        if self._offloaded:
            self._offload()  # The checkpoint's state is on the device, which the policy uses.
        return state

    def _read(self, folder: Path) -> dict[str, Tensor]:
        if not folder.is_dir():
            raise ValueError(f"{folder} is gone")
        weights = read_trained_state(folder, self.model, getattr(torch, self._spec.dtype))
        if not all(weight.isfinite().all() for weight in weights.values()):
            raise ValueError(f"the weights in {folder} are not finite")
        return weights


def _saved(model: PreTrainedModel, trained: dict[str, Tensor]) -> dict[str, Tensor]:
    """The trained weights by the names in a checkpoint's file. An adapter's have them already."""
    return trained if is_adapted(model) else as_saved(model, trained)


def replay_routing(scoring: ScoringModel) -> None:
    """Let tokens use the experts with which the sampler computed them.

    Raises:
        ValueError: the model is no mixture of experts whose routers are known.
    """
    if prepare(scoring.model) is None:
        raise ValueError(
            f"replay_routing (True) needs a mixture of experts: the layers of model_type "
            f"({scoring.model.config.model_type}) have no routers that are known"
        )
    scoring.replays_routing = True


def _check_experts(groups: Sequence[TrajectoryGroup]) -> None:
    segments = [s for group in groups for t in group.finished for s in t.segments]
    if segments and all(segment.experts is None for segment in segments):
        raise RunFailure(
            "replay_routing needs the experts of each token, which the policy does not report"
        )


def facts_of(model: PreTrainedModel) -> ModelFacts:
    """Properties of a model."""
    head = model.get_output_embeddings()
    return ModelFacts(
        family=model.config.model_type,
        context_window=model.config.max_position_embeddings,
        vocab_size=head.out_features,
        end_token_ids=_end_tokens(model),
        device=str(model.device),
        dtype=str(model.dtype).removeprefix("torch."),
        num_parameters=num_weights(model),
        num_trained=sum(p.numel() for p in model.parameters() if p.requires_grad),
        adapter=adapter_config(model),
    )


def _end_tokens(model: PreTrainedModel) -> tuple[int, ...]:
    """The tokens that end a message, as the model's generation config states them."""
    config = model.generation_config
    named = None if config is None else config.eos_token_id
    if named is None:
        return ()
    return tuple(named) if isinstance(named, list) else (named,)


def note_advantages(
    groups: Sequence[TrajectoryGroup], credit: tuple[Tensor, Tensor] | None
) -> None:
    """Write the advantage of each trained token into its trajectory.

    Args:
        groups: the groups of the update, including dropped ones.
        credit: :attr:`Updater.credit`, or None if the update trained nothing.
    """
    if credit is None:
        return
    finished = [t for group in groups if not group.dropped for t in group.finished]
    # The batch has an episode for each role, and tokens are ordered by episode.
    rows = sum(len(trajectory.roles) for trajectory in finished)
    ids, advantages = credit
    parts = iter(advantages.split(ids.bincount(minlength=rows).tolist()))
    for trajectory in finished:
        own = torch.cat([next(parts) for _ in trajectory.roles])
        trajectory.advantages = Column("float64", own.cpu().numpy())
