"""Scripted agents for a collector, and a run of ``rl.train`` with a toy model."""

from __future__ import annotations

from pathlib import Path

import pytest

import envs
from agents.completion import SamplingParams
from agents.renderer import Renderer
from agents.scripted import ScriptedPolicy
from rl.data.conversations import Conversation, Exchange
from rl.learner.checkpoint import save_checkpoint
from rl.rollout.collector import Collector
from rl.rollout.context import EpisodeContext, EpisodeLimits
from rl.runtime.tiny import new_model, train_tokenizer
from rl.settings.groups import TinyRecipe

TASKS = {"train": range(0, 96), "validation": range(96, 100), "test": range(100, 104)}


class ParityEnv(envs.TextEnv[int, int]):
    """Rewards texts whose characters add up to an even number: a random model earns half."""

    def __init__(self, options, services=None):
        super().__init__(options, TASKS[options.split], services)

    def begin(self, task):
        self.state = task
        return f"{task}"

    def turn(self, action):
        rewards = {"even": float(sum(map(ord, action)) % 2 == 0) / self.options.max_turns}
        return envs.go_on("more", rewards) if self.turns_left > 1 else envs.finish(rewards)


envs.register("pain-parity-v0", ParityEnv)


@pytest.fixture(scope="session")
def renderer() -> Renderer:
    texts = "task 12: a roll of the dice, say the number 3 or fail", "0 1 2 3 right wrong"
    return Renderer(train_tokenizer([Conversation((Exchange(*texts),))] * 3, 280))


@pytest.fixture
def play(renderer):
    """Play groups of an environment's class with ``say(task, member, attempt) -> text``."""

    async def play(
        env_type,
        say=None,
        tasks=(0,),
        group_size=1,
        *,
        policy=None,
        reader=None,
        limits=(),
        **options,
    ):
        reader = reader or renderer

        def respond(session, prompt_ids):
            # A session is named (seed key..., task, member, attempt).
            text = say(*map(int, session.split("/")[-3:]))
            return [*reader.splice(text), reader.end_token_ids[0]]

        env_id = f"pain-{env_type.__name__.lower()}-v0"
        if env_id not in envs.ids():
            envs.register(env_id, env_type)
        collector = Collector(
            EpisodeContext(
                env_id=env_id,
                options=env_type.Options(**options),
                services={},
                policy=policy or ScriptedPolicy(respond),
                renderer=reader,
                sampling=SamplingParams(max_tokens=32),
                limits=EpisodeLimits(**{"context_length": 10_000, **dict(limits)}),
            ),
        )
        return await collector.collect(tasks, group_size, (0,))

    return play


@pytest.fixture(scope="session")
def toy_model(renderer, tmp_path_factory) -> Path:
    """A folder with a Qwen3 of one layer and random weights."""
    recipe = TinyRecipe(
        hidden_size=32, intermediate_size=64, num_layers=1, num_heads=2, context_length=64
    )
    folder = tmp_path_factory.mktemp("toy") / "model"
    save_checkpoint(folder, new_model(renderer.tokenizer, recipe, seed=0), renderer.tokenizer)
    return folder


@pytest.fixture(scope="session")
def words(toy_model):
    """Function from settings to the command line of a short run."""

    def words(out, **settings):
        defaults = {
            "env": "pain-parity",
            "env.max_turns": 2,
            "model": toy_model,
            "deterministic": "true",
            "steps": 4,
            "prompts": 6,
            "group_size": 4,
            "optimizer.lr": 3e-3,
            "optimizer.warmup_steps": 0,
            "sampling.max_tokens": 3,
            "sampling.slots": 24,
            "eval.every": 100,
            "eval.tasks": 1,
            "eval.test_tasks": 0,
            "save_every": 2,
            "out": out,
        }
        return [f"{key}={value}" for key, value in (defaults | settings).items()]

    return words
