"""Whom an environment has to imitate."""

from __future__ import annotations

import pytest

from envs.env import EnvOptions
from rl.imitation.demonstrations import NoDemonstrations, demonstrate


async def test_demonstrations_depend_on_their_seed_alone():
    options = EnvOptions(max_turns=2)

    async def play(seed, concurrency):
        return await demonstrate("toy-copy-v0", options, {}, range(20), seed, concurrency)

    first = await play(0, 32)
    assert first == await play(0, 1)
    assert first != await play(1, 32)
    assert [len(c.exchanges) for c in first] == [2] * 20
    assert [c.exchanges[0].observation for c in first[:4]] == ["0", "1", "2", "0"]
    said = [e.action == e.observation for c in first for e in c.exchanges]
    assert 0.3 < sum(said) / len(said) < 0.9, "its author is right three times in five"


async def test_an_environment_without_an_author_says_what_to_do(chatter):
    with pytest.raises(NoDemonstrations) as refused:
        await demonstrate("toy-chatter-v0", chatter.Options(), {}, [0], 0)
    assert str(refused.value) == (
        "toy-chatter-v0 has no demonstrator to imitate: write ChatterEnv.demonstrator, or do "
        "without (model=... a Hugging Face model, data=... a file of messages)"
    )
