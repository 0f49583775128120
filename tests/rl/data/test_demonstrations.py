"""Whom an environment has to imitate."""

from __future__ import annotations

import pytest

import rl.eval
import rl.sft
import rl.train
from envs.env import EnvOptions
from envs.support.env import SupportOptions
from rl.data.demonstrations import NoDemonstrations, demonstrate


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


async def test_each_role_has_its_own_tools():
    options = SupportOptions(customer="role", syntax="chat")
    agent, customer = await demonstrate("support-v0", options, {}, [0], 0)
    assert agent.system.startswith("You are the support")
    assert [tool["function"]["name"] for tool in agent.tools] == [
        "get_order",
        "cancel_order",
        "refuse",
    ]
    assert customer.system.startswith("You are ")
    assert customer.tools == ()


async def test_an_environment_without_a_demonstrator_names_the_alternatives(chatter):
    with pytest.raises(NoDemonstrations) as refused:
        await demonstrate("toy-chatter-v0", chatter.Options(), {}, [0], 0)
    assert str(refused.value) == (
        "toy-chatter-v0 has no demonstrator to imitate: write ChatterEnv.demonstrator"
    )


@pytest.mark.parametrize(
    ("command", "words", "remedy"),
    [
        (rl.sft, ["test_tasks=0"], "or give data=FILE of conversations"),
        (rl.train, ["algo.ptx_coef=1"], "or give texts.data=FILE of conversations"),
        (rl.eval, ["model=tiny"], "model=FOLDER or a Hugging Face id"),
    ],
)
def test_each_command_names_its_own_key(toy_model, tmp_path, capfd, command, words, remedy):
    words = ["env=toy-chatter", f"model={toy_model}", f"out={tmp_path}/out", *words]
    assert command.main(words) == 1
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("error: toy-chatter-v0 has no demonstrator to imitate: write ")
    assert last.endswith(remedy)
