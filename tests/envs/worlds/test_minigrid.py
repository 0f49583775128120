"""MiniGrid's worlds, against MiniGrid itself."""

from __future__ import annotations

import numpy as np
import pytest

import envs
from envs.play import gold_of, play
from envs.worlds.minigrid import COMMANDS, _objects

minigrid = pytest.importorskip("minigrid")
constants = pytest.importorskip("minigrid.core.constants")


def test_it_keeps_the_contract():
    report = envs.check_env(envs.make("minigrid", level="BabyAI-GoToLocal-v0"), num_tasks=2)
    assert len(report.tasks) == 2


@pytest.mark.parametrize(
    "level", ["BabyAI-GoToObj-v0", "BabyAI-UnlockPickup-v0", "BabyAI-PutNextLocal-v0"]
)
def test_the_scripted_agent_solves_it_with_the_librarys_own_reward(level):
    import gymnasium

    env = envs.make("minigrid", level=level)
    played = play(env, gold_of(env), seed=0, task=0).steps
    assert played[-1].info["scores"] == {"solved": 1.0}
    world = gymnasium.make(level)
    world.reset(seed=env.tasks[0])
    # MiniGrid, section 3.2: the reward is 1 - 0.9 * steps / limit.
    assert played[-1].reward == pytest.approx(1 - 0.9 * len(played) / world.unwrapped.max_steps)


def test_each_command_is_the_librarys_action_of_that_name():
    from minigrid.core.actions import Actions

    names = [Actions(number).name for number in range(len(COMMANDS))]
    assert names == ["left", "right", "forward", "pickup", "drop", "toggle"]


def test_places_are_seen_from_the_agent():
    view = np.zeros((7, 7, 3), dtype=np.uint8)
    ball, wall = constants.OBJECT_TO_IDX["ball"], constants.OBJECT_TO_IDX["wall"]
    door = constants.OBJECT_TO_IDX["door"]
    view[5, 4] = ball, constants.COLOR_TO_IDX["red"], 0  # two ahead, two to the right
    view[2, 6] = door, constants.COLOR_TO_IDX["blue"], 0  # beside the agent, open
    view[3, 1] = wall, 0, 0
    view[3, 0] = wall, 0, 0
    assert [words for _, words in sorted(_objects(view))] == [
        "an open blue door 1 step left",
        "a red ball 2 steps forward and 2 steps right",
        "a wall 5 steps forward",
    ]


def test_a_wrong_command_is_answered_and_the_third_ends_the_episode():
    env = envs.make("minigrid")
    env.reset(seed=0)
    text, _, terminated, truncated, _ = env.step("fly")
    assert text.startswith("That is no command. Write one of: turn left, ")
    assert not terminated and not truncated
    env.step("fly")
    assert env.step("fly")[3]
    with pytest.raises(ValueError, match=r"level \(Pong\) must be an id of MiniGrid"):
        envs.make("minigrid", level="Pong")


def test_a_copy_goes_on_like_the_original():
    env = envs.make("minigrid", level="BabyAI-UnlockPickup-v0")
    env.reset(seed=0, options={"task": 3})
    env.step("turn left")
    other = env.fork()
    for command in ("go forward", "go forward", "turn right", "pick up"):
        assert env.step(command)[:2] == other.step(command)[:2]
