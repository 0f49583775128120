"""Environments of Gymnasium as ours: one of texts, and one that two functions translate."""

from __future__ import annotations

from dataclasses import replace

import gymnasium
import pytest
from gymnasium.envs.toy_text import FrozenLakeEnv
from gymnasium.spaces import Text
from parity import ours, theirs

import envs
from envs.adapters.foreign import ForeignOptions
from envs.adapters.gymnasium import GymnasiumEnv
from envs.base.loop import loop_thread
from envs.play import aplay, play


class Echo(gymnasium.Env):
    """Say a drawn word again; a second word is drawn if it was right."""

    observation_space = Text(8, charset="abcdefgh")
    action_space = Text(8, min_length=8, charset="abcdefgh")
    closed = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.words = 0
        return self._next(), {}

    def _next(self):
        self.word = "".join(self.np_random.choice(list("abcdefgh"), 8))
        return self.word

    def step(self, action):
        self.words += 1
        right = action == self.word
        over = not right or self.words == 2
        return self._next(), 0.5 * right, over and right, over and not right, {}

    def close(self):
        type(self).closed += 1


class EchoEnv(GymnasiumEnv):
    def make(self):
        return Echo()

    def gold_policy(self):
        return lambda observation: observation


MOVES = ("left", "down", "right", "up")


class LakeEnv(GymnasiumEnv):
    def make(self):
        return FrozenLakeEnv(is_slippery=True)

    def observe(self, observation):
        return f"You are on field {observation}."

    def act(self, text):
        if text not in MOVES:
            raise ValueError(f"Say one of {', '.join(MOVES)}.")
        return MOVES.index(text)


def make(kind, **options):
    return kind(ForeignOptions(**options))


class Parroting(EchoEnv):
    reward_floor = 1.0
    floor_waiver = "saying the observation again is all there is to it"


def test_a_text_environment_keeps_the_contract_with_a_gold_policy_of_its_own():
    report = envs.check_env(make(Parroting), num_tasks=2)
    assert len(report.tasks) == 2


def test_it_is_registered_like_any_other_and_its_gold_policy_earns_the_reward():
    envs.register("echo-words-v0", EchoEnv)
    env = envs.make("echo-words", seed=3)
    played = play(env, env.gold_policy(), task=7)
    assert [step.reward for step in played.steps] == [0.5, 0.5]
    assert played.steps[-1].info["rewards"] == {"reward": 0.5}


class ShortLakeEnv(LakeEnv):
    """Three steps at most; ice that does not slip on a map of one row."""

    def make(self):
        inner = FrozenLakeEnv(is_slippery=False, desc=["SFFG"])
        return gymnasium.wrappers.TimeLimit(inner, max_episode_steps=3)


@pytest.mark.parametrize(
    ("kind", "moves", "end"),
    [
        (LakeEnv, ["right", "down", "right", "down"] * 20, (True, False)),
        (ShortLakeEnv, ["left"] * 9, (False, True)),
        # At once at the goal and at the limit, which the library reports as both.
        (ShortLakeEnv, ["right"] * 9, (True, False)),
        (EchoEnv, ["abcdefgh"], (False, True)),
    ],
)
def test_it_shows_and_earns_what_the_librarys_own_loop_does(kind, moves, end):
    env = make(kind, seed=3)
    for task in (0, 7):
        acts = [MOVES.index(move) if move in MOVES else move for move in moves]
        own = theirs(
            env.make(), acts, env.tasks[task], lambda observation, _: env.observe(observation)
        )
        assert ours(env, moves, task) == own
        assert own[-1][2:] == end


def test_an_end_that_is_truncated_is_cut_and_the_foreign_one_is_closed():
    env = make(EchoEnv)
    env.reset(seed=0)
    before = Echo.closed
    last = env.step("abcdabcd" if env.state.env.word != "abcdabcd" else "dcbadcba")
    assert (last.terminated, last.truncated, last.reward) == (False, True, 0.0)
    assert last.info["stop_reason"] is envs.StopReason.TURN_LIMIT
    assert Echo.closed == before + 1


def test_an_action_outside_the_space_is_reported_and_the_third_in_a_row_ends_it():
    env = make(EchoEnv)
    first, _ = env.reset(seed=0)
    result = env.step("what?")
    assert result.observation.startswith("That is not an action of Text(")
    assert not result.terminated
    assert not env.step("still").terminated
    env.step(env.state.env.word)  # A good one: the count begins anew.
    assert not env.step("").truncated
    assert not env.step("").truncated
    last = env.step("")
    assert last.info["stop_reason"] is envs.StopReason.INVALID_ACTIONS
    assert first


def test_two_functions_translate_numbers():
    env = make(LakeEnv, max_turns=3)
    assert env.reset(seed=0)[0] == "You are on field 0."
    assert env.step("jump").observation == "Say one of left, down, right, up."
    assert env.step("right").observation.startswith("You are on field ")
    assert env.step("right").truncated  # By our own limit of turns.


def test_what_is_no_text_asks_for_the_function():
    class Untranslated(LakeEnv):
        observe = GymnasiumEnv.observe

    with pytest.raises(TypeError, match="observation 0 is no text: override observe"):
        make(Untranslated).reset(seed=0)


def test_seeds_are_of_one_split_only_and_within_what_generators_take():
    tasks = {}
    for seed in (0, 5, 999, 1000):
        for split in ("train", "validation", "test"):
            tasks[seed, split] = make(EchoEnv, split=split, seed=seed).tasks
    assert max(range_[-1] for range_ in tasks.values()) < 2**32
    assert min(range_[0] for range_ in tasks.values()) >= 0
    for one in tasks:
        for other in tasks:
            if one[1] != other[1]:
                assert tasks[one][0] % 3 != tasks[other][0] % 3
    assert tasks[0, "train"][0] != tasks[5, "train"][0]


def walk(env, seed, moves):
    env.reset(seed=seed)
    steps = []
    for move in moves:
        steps.append(env.step(move))
        if steps[-1].terminated or steps[-1].truncated:
            break
    return steps


def test_the_same_seed_is_the_same_episode_on_slippery_ice_also_beside_others():
    moves = ["right", "down", "right", "down", "down", "right"] * 3
    alone = walk(make(LakeEnv), 4, moves)
    assert any(walk(make(LakeEnv), seed, moves) != alone for seed in range(5, 9))

    async def interleaved():
        members = make(LakeEnv).group(8)
        for member in members:
            await member.areset(seed=4)
        played = [[] for _ in members]
        for move in moves[: len(alone)]:
            for steps, member in zip(played, members, strict=True):
                steps.append(await member.astep(move))
        return played

    assert loop_thread.run(interleaved()) == [alone] * 8


def test_a_fork_in_mid_episode_slips_as_its_parent_does():
    env = make(LakeEnv)
    env.reset(seed=11)
    env.step("right")
    twin = env.fork()
    assert [twin.step("down") for _ in range(2)] == [env.step("down") for _ in range(2)]


def test_one_that_does_not_pickle_says_so():
    env = make(EchoEnv)
    env.reset(seed=0)
    env.state.env.helper = lambda: None
    with pytest.raises(envs.NotForkable, match="does not pickle"):
        env.snapshot()


def test_a_gymnasium_make_with_its_wrappers_pickles_too():
    class Registered(LakeEnv):
        def make(self):
            return gymnasium.make("FrozenLake-v1", is_slippery=True)

    env = make(Registered)
    env.reset(seed=11)
    twin = env.fork()
    assert twin.step("right") == env.step("right")
    assert replace(env.options, max_turns=2).max_turns == 2
    assert loop_thread.run(aplay(env, lambda _: "up", seed=1)).steps
