"""A collector over a toy environment, and a policy that remembers what it said."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import envs
from agents.completion import Completion, FinishReason, SamplingParams
from agents.renderer import Renderer
from rl.data.conversations import Conversation, Exchange
from rl.rollout.collector import Collector
from rl.rollout.context import EpisodeContext, EpisodeLimits
from rl.runtime.tiny import train_tokenizer


class RandomPolicy:
    """Says random tokens for a random while; the sampling seed alone decides which.

    ``said`` has, by session, each (prompt ids, sampling parameters, completion).
    """

    def __init__(self, vocab_size, end_id, delay_s=0.0):
        self.vocab_size = vocab_size
        self.end_id = end_id
        self.delay_s = delay_s
        self.version = 0
        self.begun = []
        self.ended = []
        self.said = {}

    def begin(self, sessions):
        self.begun.extend(sessions)

    async def generate(self, prompt_ids, sampling, session=None):
        await asyncio.sleep(self.delay_s)
        rng = np.random.default_rng(sampling.seed)
        count = min(int(rng.integers(1, 12)), sampling.max_tokens)
        tokens = rng.integers(2, self.vocab_size, count).tolist()
        reason = FinishReason.LENGTH
        if rng.random() < 0.5:
            tokens[-1], reason = self.end_id, FinishReason.STOP_TOKEN
        # The weights may change in the middle of a completion.
        versions = tuple(self.version + i // 4 for i in range(count))
        self.version += 3
        logprobs = tuple((-rng.exponential(size=count)).tolist())
        answer = Completion(tuple(tokens), logprobs, versions, reason)
        self.said.setdefault(session, []).append((list(prompt_ids), sampling, answer))
        return answer

    def queued_s(self, session):
        return 0.0

    def end(self, session):
        self.ended.append(session)

    async def load_weights(self, weights, version):
        self.version = version

    async def close(self):
        """Nothing is held."""


@pytest.fixture(scope="session")
def renderer():
    texts = Conversation((Exchange("task 12: a b c", "a b"),))
    return Renderer(train_tokenizer([texts], 270))


@pytest.fixture
def random_policy(renderer):
    return RandomPolicy(len(renderer.tokenizer), renderer.end_token_ids[0])


@pytest.fixture
def make_collector(renderer, random_policy, chatter):
    """From the chattering environment's options to a collector; ``limits`` are EpisodeLimits'."""

    def make(policy=None, *, limits=None, max_tokens=32, vine=None, **options):
        return Collector(
            EpisodeContext(
                env_id="toy-chatter-v0",
                options=envs.env_type("toy-chatter-v0").Options(**options),
                services={},
                policy=policy or random_policy,
                renderer=renderer,
                sampling=SamplingParams(max_tokens=max_tokens),
                limits=EpisodeLimits(**{"context_length": 10_000, **(limits or {})}),
            ),
            vine=vine,
        )

    return make
