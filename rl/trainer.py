"""What a training run is made of, put together: environment, policy, learner, evaluation, state."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

import envs
from agents.completion import SamplingParams
from agents.local import LocalPolicy
from agents.renderer import Renderer
from rl.config import TrainConfig
from rl.errors import UsageError
from rl.learner.checkpoint import TRAINER_STATE, load_trainer_state, save_checkpoint
from rl.learner.learner import Learner
from rl.learner.model import load_model
from rl.learner.settings import OptimizerConfig
from rl.rollout.collector import Collector, EpisodeLimits
from rl.rollout.order import TaskOrder
from rl.rollout.trajectory import TrajectoryGroup
from rl.run.folder import RunFolder
from rl.run.metrics import PassRate, pass_rate, success_of
from rl.tiny import make_tiny

TRAIN, VALIDATION, TEST = 0, 1, 2
"""First number after the seed in a collection's seed key: no two kinds share random numbers."""

KEPT_CHECKPOINTS = 2
TINY_LR, LARGE_LR = 4e-4, 1e-6
"""Learning rates when none is given: for model=tiny, and for every other model."""


@dataclass
class Progress:
    """What a resumed run must know beside the learner's state."""

    step: int = 0
    best_success: float = -1.0
    best_step: int = -1
    seconds: float = 0.0


class Trainer:
    """The parts of a run and the verbs of its loop; made by :func:`open_trainer`."""

    def __init__(
        self,
        config: TrainConfig,
        optimizer: OptimizerConfig,
        folder: RunFolder,
        services: Mapping[str, Any],
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        self.config = config
        self.folder = folder
        self.services = services
        self.model = model
        self.tokenizer = tokenizer
        self.progress = Progress()
        self.success_score = envs.env_type(config.env.env_id).success_score
        self.renderer = Renderer(tokenizer)
        self.policy = LocalPolicy(
            model,
            tokenizer,
            max_slots=config.sampling.slots,
            seed=config.seed,
            deterministic=config.deterministic,
        )
        self.learner = Learner(
            model,
            config.algo.row,
            optimizer,
            temperature=config.sampling.temperature,
            max_tokens_per_micro_batch=config.micro_batch_tokens,
            seed=config.seed,
        )
        self.collector = self._collector("train", config.sampling.temperature)
        self.order = TaskOrder(len(self.collector.make_env().tasks), config.seed)
        # One thread of its own: torch's thread settings are per thread.
        self._learner_thread = ThreadPoolExecutor(1, "turnwise-learner")

    def facts(self) -> dict[str, Any]:
        """What the run depends on beside its configuration."""
        return {
            "device": str(self.model.device),
            "dtype": str(self.model.dtype),
            "num_parameters": sum(p.numel() for p in self.model.parameters()),
            "forward": self.policy.forward_kind,
            "services": {name: str(service) for name, service in self.services.items()},
            "template_difference": self.renderer.difference,
        }

    async def rollout(self, step: int) -> list[TrajectoryGroup]:
        """Play the step's episodes with the current weights."""
        config = self.config
        tasks = self.order.take((step - 1) * config.prompts, config.prompts)
        return await self.collector.collect(tasks, config.group_size, (config.seed, TRAIN, step))

    async def learn(self, groups: list[TrajectoryGroup]) -> dict[str, float]:
        """Update the weights; the policy shares them, and is told.

        Raises:
            NonFiniteLoss: the weights are still those of the last good step.
        """
        loop = asyncio.get_running_loop()
        metrics = await loop.run_in_executor(self._learner_thread, self.learner.update, groups)
        self.policy.load_weights(None, self.policy.version + 1)
        return metrics

    async def evaluate(self, split: str, num_tasks: int) -> PassRate:
        """One episode of each of the first ``num_tasks`` tasks of a split."""
        kind = {"validation": VALIDATION, "test": TEST}[split]
        collector = self._collector(split, self.config.eval.temperature)
        tasks = range(min(num_tasks, len(collector.make_env().tasks)))
        groups = await collector.collect(tasks, 1, (self.config.seed, kind))
        finished = [t for group in groups for t in group.finished]
        return pass_rate([success_of(t, self.success_score) for t in finished])

    def save(self, step: int) -> None:
        """Write the checkpoint of ``step`` and drop all but the newest few."""
        state = {
            "learner": self.learner.state_dict(),
            "progress": dataclasses.asdict(self.progress),
            "policy_version": self.policy.version,
        }
        path = self.folder.checkpoints / f"step-{step:06d}"
        save_checkpoint(path, self.model, self.tokenizer, state)
        for old in self._saved()[:-KEPT_CHECKPOINTS]:
            _remove(old)

    def save_best(self, success: float) -> None:
        """Keep the current weights as the best when ``success`` on validation says so."""
        if success <= self.progress.best_success:
            return
        self.progress.best_success = success
        self.progress.best_step = self.progress.step
        save_checkpoint(self.folder.checkpoints / "best", self.model, self.tokenizer)

    def load_best(self) -> None:
        """Put the best weights back into the model and tell the policy."""
        best = load_model(self.folder.checkpoints / "best", dtype=self.model.dtype)
        self.model.load_state_dict(best.state_dict())
        self.policy.load_weights(None, self.policy.version + 1)

    def restore(self) -> bool:
        """Go on from the newest checkpoint; False where there is none."""
        saved = self._saved()
        if not saved:
            return False
        weights = load_model(saved[-1], dtype=self.model.dtype)
        self.model.load_state_dict(weights.state_dict())
        state = load_trainer_state(saved[-1])
        self.learner.load_state_dict(state["learner"])
        self.progress = Progress(**state["progress"])
        self.policy.load_weights(None, state["policy_version"])
        self.folder.rewind(self.progress.step)
        return True

    async def close(self) -> None:
        """Give back the policy and the learner's thread."""
        await self.policy.close()
        self._learner_thread.shutdown(wait=True)

    def dump(self, groups: list[TrajectoryGroup], step: int) -> str:
        """Write the episodes that broke the learner; the good weights are saved as well."""
        self.save(self.progress.step)
        return str(self.folder.write_trajectories(step, groups))

    def _saved(self) -> list[Path]:
        """Complete checkpoints of this run, oldest first."""
        folders = sorted(self.folder.checkpoints.glob("step-*"))
        return [path for path in folders if (path / TRAINER_STATE).is_file()]

    def _collector(self, split: str, temperature: float) -> Collector:
        config = self.config
        return Collector(
            config.env.env_id,
            dataclasses.replace(config.env.options, split=split)
            if split != "train"
            else config.env.options,
            self.services,
            policy=self.policy,
            renderer=self.renderer,
            sampling=SamplingParams(temperature=temperature, max_tokens=config.sampling.max_tokens),
            limits=EpisodeLimits(context_length=self._context_length()),
        )

    def _context_length(self) -> int:
        window: int = self.model.config.max_position_embeddings
        return min(self.config.context_length or window, window)


@asynccontextmanager
async def open_trainer(config: TrainConfig, folder: RunFolder, say: Any) -> AsyncIterator[Trainer]:
    """Open the environment's services, load or make the model, and put a trainer together.

    Raises:
        UsageError: the model does not exist, or a setting contradicts it.
        UnsafeSandbox: programs would run without isolation and ``allow_unsafe`` is false.
    """
    torch.set_num_threads(config.threads)
    env_id, options = config.env.env_id, config.env.options
    async with AsyncExitStack() as stack:
        # Until here and no further, a ValueError is about what the user asked for.
        try:
            services = envs.env_type(env_id).open_services(options)
            opened = await stack.enter_async_context(services)
            path, optimizer = config.model, config.optimizer
            if path == "tiny":
                made = await make_tiny(env_id, options, opened, seed=config.seed, say=say)
                path = str(made)
            if optimizer.lr == 0:
                lr = TINY_LR if config.model == "tiny" else LARGE_LR
                optimizer = dataclasses.replace(optimizer, lr=lr)
            model = load_model(path, device=_device(config.device), dtype=_dtype(config))
            tokenizer = AutoTokenizer.from_pretrained(path)
            trainer = Trainer(config, optimizer, folder, opened, model, tokenizer)
        except ValueError as error:
            raise UsageError(str(error)) from error
        stack.push_async_callback(trainer.close)
        if trainer.renderer.difference is not None:
            say(f"chat template: {trainer.renderer.difference}")
        yield trainer


def _device(name: str) -> torch.device:
    if name != "auto":
        return torch.device(name)
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _dtype(config: TrainConfig) -> torch.dtype:
    if config.dtype != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16}[config.dtype]
    return torch.bfloat16 if _device(config.device).type == "cuda" else torch.float32


def _remove(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
