"""The memory plan: bytes of each part in each phase of a step, and the memory of the device."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from os import sysconf
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, PretrainedConfig

from rl.errors import UsageError
from rl.learner.lora import base_of
from rl.learner.settings import MemoryConfig
from rl.planning.learner import LearnerMemory, episode_cache, learner_memory
from rl.planning.live_bytes import gib
from rl.policies.memory import DeviceFacts
from rl.runtime.deterministic import fix_workspace
from rl.runtime.model import device_of, dtype_of
from rl.settings.train import TrainConfig

CONTEXT = 3 << 28
"""Estimated bytes of CUDA's context and of the libraries' workspaces: 0.75 GiB."""
USUAL_ROW = 4096
"""Minimum length of episodes, in tokens, that is suggested before an adapter is suggested."""
MIN_ROW = 512
"""Minimum length of episodes, in tokens, that is suggested at all."""
FRAGMENTS = 0.05
"""Estimated memory that torch's allocator cannot use, as a share of all other bytes."""


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of each part, in the phases ``learn`` and ``generate``."""

    device: str
    capacity: int
    row: int
    """Number of tokens in the longest row."""
    learn: Mapping[str, int]
    generate: Mapping[str, int]

    @property
    def peak(self) -> int:
        """Bytes of the phase that needs more memory."""
        return max(sum(self.learn.values()), sum(self.generate.values()))

    @property
    def fits(self) -> bool:
        """Whether both phases fit into the device's memory."""
        return self.peak <= self.capacity

    def table(self) -> str:
        """The plan as lines for a terminal."""
        names = list(dict.fromkeys((*self.learn, *self.generate)))
        width = max(map(len, names)) + 2
        lines = [
            f"memory plan for {self.device}, rows of up to {self.row} tokens",
            f"{'':{width}}{'learn':>12}{'generate':>12}",
        ]
        for name in names:
            cells = (self.learn.get(name, 0), self.generate.get(name, 0))
            if any(cells):
                text = "".join(f"{gib(size) if size else '-':>12}" for size in cells)
                lines.append(f"{name:{width}}{text}")
        totals = (sum(self.learn.values()), sum(self.generate.values()))
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

    def plan(self, config: TrainConfig) -> MemoryPlan:
        """The memory plan of a run with the model and the device of this planner."""
        dtype = self._dtype(config)
        row = self._row(config)
        learner = self._learner(config, dtype, row)
        facts = DeviceFacts(
            capacity=self.capacity,
            on_gpu=self.on_gpu,
            weights=learner.weights,
            episode_cache=partial(self._cache, dtype, row),
            slots=config.sampling.slots,
            ahead=config.staleness > 0,
        )
        policy = config.policy.settings.device_memory(facts)
        resident = _resident(config, learner)
        learn = {
            **resident,
            "gradients": learner.gradients,
            "activations": learner.activations,
            "policy": policy.learning,
        }
        if not self.on_gpu and not config.algorithm.one_step:
            learn["copy for undoing"] = learner.weights + learner.copies + learner.moments
        kept = {"weights": learner.weights} if config.policy.settings.sleeps else resident
        generate = {**kept, "policy": policy.generating}
        if self.on_gpu:
            for phase in (learn, generate):
                phase["CUDA, fragments"] = CONTEXT + int(FRAGMENTS * sum(phase.values()))
        return MemoryPlan(self.device, self.capacity, row, learn, generate)

    def weights(self, config: TrainConfig) -> int:
        """Bytes of the model's weights."""
        return self._learner(config, self._dtype(config), self._row(config)).weights

    def episode_cache(self, config: TrainConfig) -> int:
        """Bytes of the keys and values of the longest episode."""
        return self._cache(self._dtype(config), self._row(config))

    def _learner(self, config: TrainConfig, dtype: str, row: int) -> LearnerMemory:
        memory = self._memory(config)
        key = (config.lora, row, config.micro_batch_tokens, memory)
        if key not in self._learners:
            self._learners[key] = learner_memory(
                self.model,
                config.algorithm,
                config.effective_optimizer,
                config.lora,
                memory,
                dtype,
                row=row,
                max_tokens=config.micro_batch_tokens,
            )
        return self._learners[key]

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
            activation_checkpointing=config.memory.checkpointing_on(device),
            head_mib=config.memory.head_bytes(device) >> 20,
        )

    def _dtype(self, config: TrainConfig) -> str:
        if config.dtype == "auto" and self.on_gpu:
            return "bfloat16"
        return str(dtype_of(config)).removeprefix("torch.")


def explain(config: TrainConfig) -> str:
    """The memory plan as lines of text, or "" if the run has no plan.

    If the run does not fit, the text ends with settings that fit.
    """
    if not _is_planned(config):
        return ""
    try:
        planner = Planner(config)
        plan = planner.plan(config)
    except Exception as error:
        return _no_plan(error)
    lines = plan.table()
    return lines if plan.fits else f"{lines}: {_advice(planner, config)}"


def check_memory(config: TrainConfig, report: Callable[[str], None]) -> None:
    """Refuse a run that cannot fit into a GPU's memory, before anything is loaded.

    A run on a CPU is not checked, unless ``plan.gpu_gb`` is set.

    Without ``context_length``, an episode can fill the model's window, but few episodes do. Such a
    run is refused only if episodes of :data:`MIN_ROW` tokens do not fit. Otherwise, ``report`` gets
    a line about the memory that longer episodes need.

    Raises:
        UsageError: the run cannot fit, or ``deterministic`` needs a new process.
    """
    if not _is_planned(config):
        return
    fix_workspace(config)  # the plan asks CUDA for the size of the device
    if not config.plan.gpu_gb and device_of(config).type != "cuda":
        return
    try:
        planner = Planner(config)
        plan = planner.plan(config)
    except Exception as error:
        report(_no_plan(error))
        return
    if plan.fits:
        return
    problem = (
        f"the run needs {gib(plan.peak)} of {planner.device}, if episodes "
        f"have {plan.row} tokens: {_advice(planner, config)} (--dry-run shows the parts)"
    )
    short = replace(config, context_length=MIN_ROW)
    if config.context_length or not planner.plan(short).fits:
        raise UsageError(problem)
    report(problem)


def _is_planned(config: TrainConfig) -> bool:
    """Whether the run has a plan: its learner is in this process, and its model is not ``tiny``."""
    return config.model != "tiny" and config.learner == "local"


def _no_plan(error: Exception) -> str:
    """The line that replaces a plan after an error. A run must not fail because it has no plan."""
    return f"no memory plan: {str(error).splitlines()[0] if str(error) else type(error).__name__}"


def _advice(planner: Planner, config: TrainConfig) -> str:
    words = settings_that_fit(planner, config)
    return f"give {words}" if words else "give a smaller model"


def settings_that_fit(planner: Planner, config: TrainConfig) -> str:
    """Words of the command line with which the run would fit, or "" if no such words were found.

    Changes that cost less come first. Each change keeps the previous changes.
    """
    words: list[str] = []
    for change in (_checkpoints, _sleep, _smaller_cache, _shorter, _adapter, _shortest):
        plan = planner.plan(config)
        if plan.fits:
            break
        changed = change(planner, config, plan)
        if changed is not None:
            word, config = changed
            words = [w for w in words if w.split("=")[0] != word.split("=")[0]] + [word]
    return " ".join(words) if planner.plan(config).fits else ""


Change = tuple[str, TrainConfig] | None


def _checkpoints(planner: Planner, config: TrainConfig, plan: MemoryPlan) -> Change:
    """Turn on activation checkpointing: activations are computed twice instead of kept."""
    memory = config.memory
    if memory.activation_checkpointing != "off" and planner.on_gpu:
        return None
    if memory.activation_checkpointing in ("on", "offload"):
        return None
    on = replace(memory, activation_checkpointing="on")
    return "memory.activation_checkpointing=on", replace(config, memory=on)


def _sleep(planner: Planner, config: TrainConfig, plan: MemoryPlan) -> Change:
    """Let the policy free its memory while the learner learns, if the policy can do so."""
    settings: Any = config.policy.settings
    if getattr(settings, "sleep", None) is not False or config.staleness:
        return None
    awake = replace(config.policy, settings=replace(settings, sleep=True))
    return "policy.sleep=true", replace(config, policy=awake)


def _smaller_cache(planner: Planner, config: TrainConfig, plan: MemoryPlan) -> Change:
    """Lower ``cache_gb``, the memory of keys and values, but to no less than an episode needs."""
    settings: Any = config.policy.settings
    if not hasattr(settings, "cache_gb"):
        return None
    over = max(sum(p.values()) - plan.capacity for p in (plan.learn, plan.generate) if p["policy"])
    own = planner.weights(config) if config.staleness else 0
    cache = plan.generate["policy"] - own - over / (1 + FRAGMENTS)
    fits = int(cache / 2**30 * 10) / 10
    if over <= 0 or fits * 2**30 < planner.episode_cache(config):
        return None
    smaller = replace(config.policy, settings=replace(settings, cache_gb=fits))
    return f"policy.cache_gb={fits:g}", replace(config, policy=smaller)


def _adapter(planner: Planner, config: TrainConfig, plan: MemoryPlan) -> Change:
    """Train an adapter instead of all weights."""
    if config.lora.rank or importlib.util.find_spec("peft") is None:
        return None
    return "lora.rank=16", replace(config, lora=replace(config.lora, rank=16))


def _shorter(planner: Planner, config: TrainConfig, plan: MemoryPlan) -> Change:
    """Shorten the episodes, but not below :data:`USUAL_ROW` tokens."""
    return _shortened(planner, config, plan, USUAL_ROW)


def _shortest(planner: Planner, config: TrainConfig, plan: MemoryPlan) -> Change:
    """Shorten the episodes, but not below :data:`MIN_ROW` tokens."""
    return _shortened(planner, config, plan, MIN_ROW)


def _shortened(planner: Planner, config: TrainConfig, plan: MemoryPlan, least: int) -> Change:
    half = planner.plan(replace(config, context_length=plan.row // 2))
    # Without a mask, memory is linear in the row.
    each = max(1.0, (plan.peak - half.peak) / (plan.row - half.row))
    fits = int(half.row + (plan.capacity - half.peak) / each) // 64 * 64
    if fits < least:
        return None
    return f"context_length={fits}", replace(config, context_length=fits)


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
