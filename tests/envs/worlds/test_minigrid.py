"""MiniGrid's worlds, against MiniGrid itself."""

from __future__ import annotations

import numpy as np
import pytest
from parity import ours, theirs

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

    names = [action.name for action in Actions]
    assert names == ["left", "right", "forward", "pickup", "drop", "toggle", "done"]
    assert [COMMANDS[action] for action in (Actions.forward, Actions.pickup, Actions.done)] == [
        "go forward", "pick up", "done",
    ]  # fmt: skip


PLAYABLE = [
    # A world of each kind of mission, with moves that solve the world of seed 0 (breadth-first
    # search over MiniGrid itself); "." is to go forward.
    ("MiniGrid-Empty-5x5-v0", "..R.."),
    ("MiniGrid-DoorKey-5x5-v0", "RP..RT..R.."),
    ("MiniGrid-Fetch-5x5-N2-v0", ".LP"),
    ("MiniGrid-GoToDoor-5x5-v0", ".L.D"),
    ("MiniGrid-GoToObject-6x6-N2-v0", "L..D"),
    ("MiniGrid-KeyCorridorS3R1-v0", "RT.PLL.T.LLOLLP"),
    ("MiniGrid-PutNear-6x6-N2-v0", "L..LPL.LO"),
    ("MiniGrid-RedBlueDoors-6x6-v0", "R..TLL...T"),
    ("MiniGrid-Dynamic-Obstacles-5x5-v0", "LLL..L.."),
    ("MiniGrid-MemoryS17Random-v0", ".....L."),
]
LETTERS = dict(zip("LR.POTD", COMMANDS, strict=True))


@pytest.mark.parametrize(("level", "moves"), PLAYABLE)
def test_each_kind_of_mission_can_be_solved_as_in_the_librarys_own_loop(level, moves):
    import gymnasium

    class First(type(envs.make("minigrid", level=level))):
        def begin(self, task):
            return super().begin(0)

    env = First(envs.make("minigrid", level=level).options)
    words = [LETTERS[letter] for letter in moves]
    mine = ours(env, words)
    env.reset(options={"task": 0})
    world = gymnasium.make(level)
    env.state.env = world
    numbers = [COMMANDS.index(word) for word in words]
    assert mine == theirs(world, numbers, 0, lambda observation, _: env.observe(observation))
    assert (len(mine) - 1, mine[-1].terminated) == (len(moves), True)
    assert mine[-1].reward > 0


def test_a_world_with_three_actions_has_three_commands():
    env = envs.make("minigrid", level="MiniGrid-Dynamic-Obstacles-5x5-v0")
    env.reset(seed=0)
    assert "turn left, turn right, go forward." in env.system_prompt
    assert "pick up" not in env.system_prompt and "Toggle" not in env.system_prompt
    # MiniGrid itself would turn left.
    assert env.step("pick up").observation.startswith("That is no command.")


def test_worlds_without_a_reward_or_their_files_are_refused():
    with pytest.raises(ValueError, match="has no mission and no reward: name another"):
        envs.make("minigrid", level="MiniGrid-Playground-v0")
    with pytest.raises(ValueError, match=r"pip install 'minigrid\[wfc\]', and the pattern"):
        envs.make("minigrid", level="MiniGrid-WFC-MazeSimple-v0")


def test_the_scripted_agent_is_the_gold_policy_where_it_can_solve_the_level():
    with pytest.raises(NotImplementedError):
        envs.make("minigrid", level="BabyAI-KeyInBox-v0").gold_policy()
    assert envs.make("minigrid", level="BabyAI-KeyInBox-v0").best_return(0) == 1.0


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
