"""Updates by one process and by several ranks, on the same model and episodes."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
import traceback
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from small_learner import build_group, build_mixture, build_model, build_routed

from agents.torch_thread import TorchThread
from rl.credit.algorithms import ALGORITHMS
from rl.errors import RunFailure
from rl.learner.local import LocalLearner
from rl.learner.ranks.world import SOLO
from rl.learner.seam import Experience, Host, LearnerSpec, TrainingSpec
from rl.learner.settings import MemoryConfig, OptimizerConfig
from rl.settings.lora import LoraConfig

STEPS = 5
KL = {"kl.coef": 0.1}
OWN_CRITIC = {"value.critic": "model"}


@dataclass(frozen=True)
class Case:
    """An update's settings, and the episodes of each group as (context, sampled, reward) turns."""

    algorithm: str = "grpo"
    changes: dict = field(default_factory=dict)
    lora: int = 0
    dtype: str = "float32"
    micro_batch_tokens: int = 16
    groups: int = 4
    packing: bool = True
    checkpointing: str = "off"
    replay: bool = False
    """Whether tokens use random experts, as if the sampler had chosen them."""
    tied_step: int = 0
    """The update whose episodes all have the same reward, or 0."""
    model: str = "model"
    """One of the models of :func:`save_models`."""

    def spec(self, folder):
        row = ALGORITHMS[self.algorithm].changed(self.changes)
        optimizer = OptimizerConfig(lr=1e-3, max_grad_norm=0.01)
        training = TrainingSpec(
            *(row, optimizer, 1.0, self.micro_batch_tokens),
            memory=MemoryConfig(activation_checkpointing=self.checkpointing),
            packing=self.packing,
            replay_routing=self.replay,
        )
        return LearnerSpec(
            *(str(folder / self.model), None, "cpu", self.dtype, LoraConfig(rank=self.lora), 3),
            training,
        )


CASES = {
    "grpo": Case(),
    "grpo-padded": Case(packing=False),
    "grpo-tied": Case(model="tied"),
    # Scored without a backward pass, then a step along the averages.
    "grpo-equal-rewards": Case(tied_step=3),
    "mixture": Case(model="mixture"),
    "mixture-replayed": Case(model="mixture", replay=True),
    "grpo-kl": Case(changes=KL),
    "grpo-kl-renewed": Case(changes={**KL, "kl.ref_every": 2}),
    "ppo": Case("ppo", {"minibatches": 2}),
    "ppo-own-critic": Case("ppo", OWN_CRITIC),
    "lora": Case(lora=2),
    "lora-kl": Case(lora=2, changes=KL),
    "lora-ppo": Case("ppo", lora=2),
    "gspo": Case("gspo"),
    "prime": Case("prime"),
    "oreal": Case("oreal"),
    # One micro-batch: every rank but one repeats it without weight.
    "empty-rank": Case(groups=1, micro_batch_tokens=4096),
    "checkpointed": Case(checkpointing="on"),
}


def episodes(case, step=0):
    """Groups of episodes of different lengths and numbers of turns, for an update."""
    shapes = [[(3, 2, 1.0)], [(3, 5, 0.0)], [(3, 4, 0.5), (2, 3, 0.0)], [(3, 7, 1.0)]]
    if step and step == case.tied_step:
        shapes = [[(3, 2, 1.0)], [(3, 5, 1.0)], [(3, 4, 0.5), (2, 3, 0.5)], [(3, 7, 1.0)]]
    groups = [build_group(shapes[: 2 + seed % 3], seed=seed) for seed in range(case.groups)]
    for trajectory in (t for group in groups for t in group.trajectories):
        trajectory.outcome = float(trajectory.member % 2)
        if case.replay:
            drawn = np.random.default_rng((trajectory.task, trajectory.member))
            for segment in trajectory.segments:
                first = drawn.integers(0, 4, (len(segment) - 1, 2, 1))
                segment.experts = np.concatenate([first, (first + 1) % 4], -1).astype(np.uint8)
    return groups


def save_models(folder):
    build_model().save_pretrained(folder / "model")
    build_model(tie_word_embeddings=True).save_pretrained(folder / "tied")
    build_mixture().save_pretrained(folder / "mixture")
    build_routed().save_pretrained(folder / "routed")


async def learned(case, folder, world=SOLO):
    """The metrics of each update, the weights after the last, scores, and the token record."""
    learner = await opened(case, folder, world)
    metrics = [await learner.update(Experience(episodes(case, v)), v) for v in range(1, STEPS + 1)]
    record = await learner.token_record(STEPS)
    scores = await learner.score([5, 6, 7], 0.7, [[7, 9]])
    return metrics, await learner.collected(complete=False), scores, record


async def opened(case, folder, world=SOLO):
    thread = TorchThread(1)
    return await thread.do(LocalLearner, case.spec(folder), Host(thread, int), world)


async def resumed(case, folder, checkpoint, world=SOLO):
    """The metrics of one update after a checkpoint was loaded, and its weights."""
    learner = await opened(case, folder, world)
    state = await learner.load(checkpoint)
    version = learner.version + 1
    metrics = await learner.update(Experience(episodes(case)), version)
    return state, version, metrics, await learner.collected(complete=False)


async def saved(case, folder, checkpoint, world=SOLO):
    """Two updates, and a checkpoint that is written during a third: its metrics and weights."""
    learner = await opened(case, folder, world)
    for version in (1, 2):
        await learner.update(Experience(episodes(case)), version)
    write = await learner.prepare_save(checkpoint, {"mine": 7}, resumable=True)
    metrics = await learner.update(Experience(episodes(case)), 3)
    await asyncio.to_thread(write)
    return metrics, await learner.collected(complete=False)


async def unwritable(folder, world=SOLO):
    """What each rank raises if rank 0 cannot write a checkpoint."""
    learner = await opened(CASES["grpo"], folder, world)
    (folder / "file").touch()
    try:
        await learner.save(folder / "file" / "checkpoint", resumable=True)
    except RunFailure as error:
        return str(error)
    return None


def run_ranks(size, jobs, folder, dtype=torch.float32):
    """What each of ``size`` ranks returns for ``jobs`` (coroutine functions of a world), by name.

    A job that fails gives the text of its traceback.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["ranked_cases", "rl.learner.ranks.sharding", "peft"])
    results = [context.SimpleQueue() for _ in range(size)]
    rendezvous = f"file://{Path(folder) / f'rendezvous-{size}'}"
    processes = [
        context.Process(
            target=_rank, args=(rank, size, rendezvous, dtype, jobs, results[rank]), daemon=True
        )
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    found = [_result(queue, processes) for queue in results]
    for process in processes:
        process.join(60)
    return found


def _result(queue, processes):
    while queue.empty():
        # One that ended without a result would be waited for forever.
        assert all(p.exitcode in (None, 0) for p in processes), "a rank ended"
        time.sleep(0.05)
    return queue.get()


def _rank(rank, size, rendezvous, dtype, jobs, results):
    from rl.learner.ranks.sharding import Ranks

    torch.set_num_threads(1)
    world = Ranks(rank, size, rendezvous, torch.device("cpu"), dtype, 20.0)
    found = {}
    for name, job in jobs.items():
        try:
            found[name] = asyncio.run(job(world=world))
        except Exception as error:
            found[name] = "".join(traceback.format_exception(error))
    # Plain arrays: multiprocessing would put tensors into shared memory.
    results.put(_plain(found))


def _plain(value):
    if isinstance(value, torch.Tensor):
        return value.float().numpy()
    if isinstance(value, dict):
        return {key: _plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return [_plain(x) for x in value]
    return value


def updates(folder, names):
    """A job for each case: five updates."""
    return {name: partial(learned, CASES[name], folder) for name in names}
