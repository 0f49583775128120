"""Five runs that are broken on purpose, and a healthy one: does the viewer name the cause?

    python -m benchmarks.viewer.broken_runs FOLDER [SEED]

The command makes a small model for ``search-qa`` and six runs with it: ``FOLDER/run-a`` to
``FOLDER/run-f`` in an order that SEED decides, and ``FOLDER-key.txt``, which names the fault of
each. Open ``python -m rl.view FOLDER`` and find the causes before you read the key. On two cores
the model takes a minute, and a run less than one.
"""

from __future__ import annotations

import asyncio
import copy
import random
import sys
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import envs
import rl
from agents.local import LocalPolicy
from rl.files import write_stdout
from rl.learner.local import LocalLearner, load_policy_model
from rl.learner.registration import register
from rl.learner.seam import Experience, Host, LearnerSpec
from rl.policies.engine import PolicyContext
from rl.policies.local import Local
from rl.policies.registration import register_policy
from rl.rollout.trajectory import Trajectory
from rl.runtime.tiny import make_tiny

FAULTS: Mapping[str, Mapping[str, str]] = {
    "healthy": {},
    "tied rewards": {"sampling.temperature": "0.01"},
    "cut answers": {"sampling.max_tokens": "6"},
    "loss mask off by one": {"learner": "misaligned"},
    "wrong chat template": {"chat.template": "CHATML"},
    "stale sampler": {"policy": "frozen"},
}
"""The settings that break a run, by the name of the fault."""
BASE: Mapping[str, Any] = {
    "env": "search-qa",
    "steps": 10,
    "prompts": 8,
    "group_size": 8,
    "sampling.max_tokens": 48,
    "optimizer.lr": 1e-3,
    "eval.every": 5,
    "eval.tasks": 32,
    "eval.test_tasks": 64,
    "save_every": 5,
    "tiny.demonstrations": 2000,
    "tiny.steps": 250,
}
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""The chat template of other models than the one that is trained."""
_SHIFTED = ("loss_mask", "sampling_logprobs", "versions")


class MisalignedLearner(LocalLearner):
    """A learner that trains the token before each one that the policy sampled."""

    async def update(self, experience: Experience, version: int) -> dict[str, float]:
        """Train with the mask one place too far to the left."""
        groups = [copy.deepcopy(group) for group in experience.groups]
        for trajectory in (t for group in groups for t in group.trajectories):
            _misalign(trajectory)
        return await super().update(replace(experience, groups=groups), version)


def _misalign(trajectory: Trajectory) -> None:
    for number, segment in enumerate(trajectory.segments):
        moved = {name: np.roll(np.asarray(getattr(segment, name)), -1) for name in _SHIFTED}
        trajectory.segments[number] = replace(segment, **moved)


async def open_misaligned(spec: LearnerSpec, host: Host) -> MisalignedLearner:
    """Open the learner; see ``seam.OpenLearner``."""
    return await host.thread.do(MisalignedLearner, spec, host)


class FrozenPolicy(LocalPolicy):
    """A policy that marks its tokens with the newest version, and keeps its first weights."""

    async def load_weights(self, weights: Mapping[str, Any] | None, version: int) -> None:
        """Take the version, and not the weights."""
        await super().load_weights(None, version)


@dataclass(frozen=True, kw_only=True)
class Frozen(Local):
    """A policy engine whose updates get lost on their way to the policy."""

    async def open(self, context: PolicyContext) -> FrozenPolicy:
        """Start the policy with a model of its own."""
        model = await asyncio.to_thread(load_policy_model, context.spec)
        policy = FrozenPolicy(
            model,
            context.spec.tokenizer,
            max_slots=context.config.sampling.slots,
            seed=context.config.seed,
        )
        context.stack.push_async_callback(policy.close)
        return policy


def register_faults() -> None:
    """Register the learner and the policy of the broken runs."""
    register("misaligned", open_misaligned)
    register_policy("frozen", Frozen)


def train(
    fault: str, folder: Path, settings: Mapping[str, Any], changes: Mapping[str, Any] | None = None
) -> rl.Run:
    """Train a run with a fault.

    Args:
        fault: a name in :data:`FAULTS`.
        folder: the run's folder.
        settings: settings of a healthy run.
        changes: settings of the fault that differ from those in :data:`FAULTS`.
    """
    broken: dict[str, Any] = {**FAULTS[fault], **(changes or {})}
    if "chat.template" in broken:
        template = folder.with_name(f"{folder.name}.jinja")
        template.write_text(CHATML)
        broken["chat.template"] = str(template)
    return rl.fit(rl.TrainConfig(**{**settings, **broken, "out": str(folder)}))


async def _model(settings: Mapping[str, Any]) -> Path:
    """The folder of the small model with which all runs begin."""
    config = rl.TrainConfig(**settings)
    env_id, options = config.env.env_id, config.env.options
    async with AsyncExitStack() as stack:
        services = await stack.enter_async_context(envs.env_type(env_id).open_services(options))
        return await make_tiny(
            env_id, options, services, seed=0, recipe=config.tiny, report=lambda line: None
        )


def main() -> None:
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    folder, seed = Path(sys.argv[1]), int(sys.argv[2] if len(sys.argv) > 2 else 0)
    folder.mkdir(parents=True)
    register_faults()
    settings = {**BASE, "model": str(asyncio.run(_model(BASE)))}
    faults = random.Random(seed).sample(list(FAULTS), len(FAULTS))
    key = {f"run-{letter}": fault for letter, fault in zip("abcdef", faults, strict=True)}
    for name, fault in key.items():
        train(fault, folder / name, settings)
    lines = "".join(f"{name}: {fault}\n" for name, fault in key.items())
    folder.with_name(f"{folder.name}-key.txt").write_text(lines)
    write_stdout(f"the runs are in {folder}\n")


if __name__ == "__main__":
    main()
