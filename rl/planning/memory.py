"""The memory plan: bytes of each part in each phase of a step, and the memory of the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from os import sysconf
from pathlib import Path

import torch
from transformers import AutoConfig, PretrainedConfig

from rl.credit.shaping import LocalModel, make_shapings
from rl.errors import UsageError
from rl.learner.lora import base_of
from rl.learner.seam import TrainingSpec
from rl.learner.settings import MemoryConfig
from rl.planning.learner import LearnerMemory, episode_cache, learner_memory, model_bytes
from rl.planning.live_bytes import gib
from rl.planning.scorers import ScorerMemory, scorer_memory
from rl.policies.memory import DeviceFacts
from rl.runtime.model import device_of, dtype_of
from rl.settings.train import TrainConfig

CUDA, SCORERS = "CUDA, fragments", "reward models"
"""Names of parts of the plan."""
CONTEXT = 3 << 28
"""Estimated bytes of CUDA's context and of the libraries' workspaces: 0.75 GiB."""
FRAGMENTS = 0.05
"""Estimated memory that torch's allocator cannot use, as a share of all other bytes."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of each part, in the phases ``learn``, ``generate`` and ``score``."""

    device: str
    capacity: int
    row: int
    """Number of tokens in the longest row."""
    learn: Mapping[str, int]
    generate: Mapping[str, int]
    score: Mapping[str, int] = field(default_factory=dict)
    """The phase in which the reward models and judges of ``shaping`` score the episodes. Empty
    without such models on the device."""

    @property
    def phases(self) -> dict[str, Mapping[str, int]]:
        """The phases of a step, by name."""
        phases = {"learn": self.learn, "generate": self.generate}
        return {**phases, "score": self.score} if self.score else phases

    @property
    def peak(self) -> int:
        """Bytes of the phase that needs most memory."""
        return max(sum(phase.values()) for phase in self.phases.values())

    @property
    def fits(self) -> bool:
        """Whether all phases fit into the device's memory."""
        return self.peak <= self.capacity

    def table(self) -> str:
        """The plan as lines for a terminal."""
        phases = self.phases
        names = list(dict.fromkeys(name for phase in phases.values() for name in phase))
        # CUDA and fragments are computed from all other parts.
        names.sort(key=CUDA.__eq__)
        width = max(map(len, names)) + 2
        lines = [
            f"memory plan for {self.device}, rows of up to {self.row} tokens",
            f"{'':{width}}" + "".join(f"{name:>12}" for name in phases),
        ]
        for name in names:
            cells = [phase.get(name, 0) for phase in phases.values()]
            if any(cells):
                text = "".join(f"{gib(size) if size else '-':>12}" for size in cells)
                lines.append(f"{name:{width}}{text}")
        totals = [sum(phase.values()) for phase in phases.values()]
        lines.append(f"{'total':{width}}" + "".join(f"{gib(size):>12}" for size in totals))
        lines.append("fits" if self.fits else "does not fit")
        return "\n".join(lines)


class Planner:
    """Makes the memory plans of a run and of its variants.

    Args:
        config: the run's settings. All variants have the same model and the same device.

    Raises:
        UsageError: the model's configuration cannot be read, or the device is missing.
    """

    def __init__(self, config: TrainConfig) -> None:
        self.model = _model_config(config.model)
        self.device, self.capacity, self.on_gpu = _device(config)
        self._learners: dict[tuple[object, ...], LearnerMemory] = {}
        self._caches: dict[tuple[str, int], int] = {}
        self._scorers: dict[tuple[str, int], list[ScorerMemory]] = {}

    def plan(self, config: TrainConfig) -> MemoryPlan:
        """The memory plan of a run with the model and the device of this planner."""
        dtype = self._dtype(config)
        row = self._row(config)
        learner = self._learner(config, dtype, row)
        facts = DeviceFacts(
            capacity=self.capacity,
            on_gpu=self.on_gpu,
            weights=self.weights(config),
            episode_cache=partial(self._cache, dtype, row),
            slots=config.sampling.slots,
            ahead=config.staleness > 0,
            in_place=config.learner.in_process,
        )
        policy = config.policy.settings.device_memory(facts)
        scorers, waits = (
            self._scorers_of(config, row),
            config.memory.offload_scorers and self.on_gpu,
        )
        resident = _resident(config, learner)
        resident[SCORERS] = 0 if waits else sum(scorer.weights for scorer in scorers)
        learn = {
            **resident,
            "gradients": learner.gradients,
            "activations": learner.activations,
            "policy": policy.learning,
        }
        if waits:
            # The reference scores before there are gradients and activations.
            resident["reference"] = 0
            learn["reference"] = max(0, learner.reference - learner.gradients - learner.activations)
        if not self.on_gpu and not config.algorithm.one_step:
            learn["copy for undoing"] = learner.weights + learner.copies + learner.moments
        sleeps = config.policy.settings.sleeps
        asleep = {"weights": learner.weights, SCORERS: resident[SCORERS]}
        kept = asleep if sleeps else resident
        generate = {**kept, "policy": policy.generating}
        score: dict[str, int] = {}
        if scorers:
            score = {
                **kept,
                "policy": policy.generating if sleeps else policy.learning,
                SCORERS: max(s.weights for s in scorers) if waits else resident[SCORERS],
                "activations": max(scorer.activations for scorer in scorers),
            }
        if self.on_gpu:
            for phase in filter(None, (learn, generate, score)):
                phase[CUDA] = CONTEXT + int(FRAGMENTS * sum(phase.values()))
        ranks = config.learner.settings.ranks
        device = self.device if ranks == 1 else f"{self.device}, of each of {ranks} ranks"
        return MemoryPlan(device, self.capacity, row, learn, generate, score)

    def weights(self, config: TrainConfig) -> int:
        """Bytes of the policy's weights."""
        dtype = self._dtype(config)
        if config.learner.in_process:
            return self._learner(config, dtype, self._row(config)).weights
        return model_bytes(self.model, dtype)

    def episode_cache(self, config: TrainConfig) -> int:
        """Bytes of the keys and values of the longest episode."""
        return self._cache(self._dtype(config), self._row(config))

    def _learner(self, config: TrainConfig, dtype: str, row: int) -> LearnerMemory:
        memory = self._memory(config)
        key = (config.lora, row, config.micro_batch_tokens, memory)
        if key not in self._learners:
            training = TrainingSpec(
                *(config.algorithm, config.effective_optimizer, 1.0, config.micro_batch_tokens),
                memory=memory,
            )
            ranks = config.learner.settings.ranks
            self._learners[key] = learner_memory(
                *(self.model, training, config.lora, dtype), row=row, ranks=ranks
            )
        return self._learners[key]

    def _scorers_of(self, config: TrainConfig, row: int) -> list[ScorerMemory]:
        """The memory of each reward model and judge of ``shaping`` on the planned device."""
        key = (config.shaping, row)
        if key not in self._scorers:
            models = [weighted.shaping.model for weighted in make_shapings(config.shaping)]
            here = [m for m in models if m is not None and self._has(m, config)]
            self._scorers[key] = [self._scorer(model, row) for model in here]
        return self._scorers[key]

    def _scorer(self, model: LocalModel, row: int) -> ScorerMemory:
        read = _model_config(model.path)
        if model.classifier:
            dtype = getattr(torch, str(read.dtype or torch.float32).removeprefix("torch."))
        else:
            dtype = torch.bfloat16 if self.on_gpu else torch.float32
        return scorer_memory(read, classifier=model.classifier, dtype=dtype, row=row)

    def _has(self, model: LocalModel, config: TrainConfig) -> bool:
        """Whether a reward model or judge is on the planned device."""
        if model.device == "auto":
            return self.on_gpu or not torch.cuda.is_available()
        device = torch.device(model.device)
        if not self.on_gpu or device.type == "cpu":
            return self.on_gpu == (device.type != "cpu")
        learner = torch.device("cuda") if config.plan.gpu_gb else device_of(config)
        return (device.index or 0) == (learner.index or 0)

    def _cache(self, dtype: str, row: int) -> int:
        if (dtype, row) not in self._caches:
            self._caches[dtype, row] = episode_cache(self.model, dtype, row)
        return self._caches[dtype, row]

    def _row(self, config: TrainConfig) -> int:
        window: int = self.model.max_position_embeddings
        return config.context_length or window

    def _memory(self, config: TrainConfig) -> MemoryConfig:
        """The settings of the learner's memory, with defaults replaced by this device's values."""
        device = "cuda" if self.on_gpu else "cpu"
        return replace(
            config.memory,
            offload_scorers=False,
            activation_checkpointing=config.memory.checkpointing_on(device),
            head_mib=config.memory.head_bytes(device) >> 20,
        )

    def _dtype(self, config: TrainConfig) -> str:
        if config.dtype == "auto" and self.on_gpu:
            return "bfloat16"
        return str(dtype_of(config)).removeprefix("torch.")


def _resident(config: TrainConfig, learner: LearnerMemory) -> dict[str, int]:
    """Bytes of the learner's parts that stay in memory in both phases, by name."""
    parts = {
        "weights": learner.weights,
        "critic": learner.critic,
        "reference": learner.reference,
        "float32 copies": learner.copies,
        "optimizer": learner.moments,
    }
    kind = config.algorithm.token_rewards.kind
    if kind != "none":
        trained = learner.weights + learner.copies + learner.moments + learner.gradients
        initial = learner.weights if kind == "implicit" else 0
        parts["token rewards"] = trained + initial
    return parts


def _device(config: TrainConfig) -> tuple[str, int, bool]:
    """Name of the device, its memory in bytes, and whether it is a GPU."""
    if config.plan.gpu_gb:
        return f"a GPU of {config.plan.gpu_gb:g} GiB", int(config.plan.gpu_gb * 2**30), True
    device = device_of(config)
    if device.type == "cuda":
        size = torch.cuda.get_device_properties(device).total_memory
        return f"{device} with {gib(size)}", size, True
    size = sysconf("SC_PHYS_PAGES") * sysconf("SC_PAGE_SIZE")
    return f"this machine with {gib(size)}", size, False


def _model_config(path: str) -> PretrainedConfig:
    base = base_of(path)
    local = Path(base).expanduser()
    try:
        config: PretrainedConfig = AutoConfig.from_pretrained(local if local.is_dir() else base)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"model ({path}) has no configuration to plan with: {str(error).splitlines()[0]}"
        ) from error
    return config
