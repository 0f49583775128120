"""Opens a run's learner: its model, its specification, and its processes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

import torch

from agents.torch_thread import TorchThread
from rl.cluster.cluster import Cluster
from rl.credit.algorithms import ALGORITHMS
from rl.data.demonstrations import NoDemonstrations
from rl.errors import UsageError
from rl.learner.model import check_model
from rl.learner.registration import opening_of
from rl.learner.seam import Host, Learner, LearnerSpec, TrainingSpec
from rl.run.process.activity import LEARNER, OPEN, Activities
from rl.run.process.closing import at_end
from rl.runtime.model import dtype_of, load_tokenizer
from rl.runtime.tiny import make_tiny
from rl.settings.chat import OWN_TEMPLATE
from rl.settings.finetuning import SFTConfig
from rl.settings.lora import LoraConfig
from rl.settings.run import RunConfig
from rl.settings.train import TrainConfig


async def open_learner(
    config: RunConfig,
    spec: LearnerSpec,
    thread: TorchThread,
    cluster: Cluster,
    activities: Activities,
    stack: AsyncExitStack,
) -> Learner:
    """Open the configured learner. ``stack`` closes it within ``close_s``."""
    host = Host(thread, lambda: activities.progressed("a micro-batch"))
    with activities.doing(LEARNER, f"the model {spec.model}", OPEN):
        learner = await opening_of(config.effective_learner, cluster)(spec, host)
    await stack.enter_async_context(
        at_end(learner.close, "the learner", activities, config.close_s)
    )
    window = learner.facts.context_window
    if config.context_length > window:
        raise UsageError(
            f"context_length ({config.context_length}) must be at most the model's window, "
            f"{window} tokens"
        )
    return learner


def learner_spec(
    config: RunConfig, path: str, device: torch.device, lora: LoraConfig
) -> LearnerSpec:
    """The specification of the run's learner.

    Raises:
        ValueError: there is no model at the path, or it has no tokenizer.
    """
    check_model(path)
    training = None
    if isinstance(config, TrainConfig):
        training = TrainingSpec(
            *(config.algorithm, config.effective_optimizer),
            temperature=config.sampling.temperature,
            micro_batch_tokens=config.micro_batch_tokens,
            memory=config.memory,
            packing=config.packing,
            replay_routing=config.replay_routing,
        )
    elif isinstance(config, SFTConfig):
        training = TrainingSpec(
            *(ALGORITHMS["grpo"], config.optimizer),
            temperature=1.0,
            micro_batch_tokens=config.micro_batch_tokens,
            memory=config.memory,
            packing=config.packing,
        )
    return LearnerSpec(
        model=path,
        tokenizer=load_tokenizer(path, config.chat),
        device=str(device),
        dtype=str(dtype_of(config)).removeprefix("torch."),
        lora=lora,
        seed=config.seed,
        training=training,
    )


async def model_path(
    config: RunConfig,
    services: Mapping[str, Any],
    thread: TorchThread,
    report: Callable[[str], None],
    activities: Activities,
) -> str:
    """The path of the model. ``model=tiny`` is created first if necessary."""
    if config.model != "tiny":
        return config.model
    if config.chat != OWN_TEMPLATE:
        raise UsageError(
            "chat must be left out with model=tiny, whose warm start has its own template: "
            "give model=FOLDER or a Hugging Face id"
        )
    try:
        made = await make_tiny(
            config.env.env_id,
            config.env.options,
            services,
            seed=config.seed,
            recipe=config.tiny,
            thread=thread,
            report=report,
            count=activities.counted,
        )
    except NoDemonstrations as error:
        without = "or take another model than model=tiny: model=FOLDER or a Hugging Face id"
        raise UsageError(f"{error}, {without}") from error
    return str(made)
