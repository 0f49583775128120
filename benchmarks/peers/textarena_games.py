"""TextArena's games, each with the wrappers that its registry gives by default."""

from __future__ import annotations

import textarena as ta
from report import Finding, main, probe


def first_observation(env, seed):
    env.reset(num_players=1, seed=seed)
    return env.get_observation()[1]


def answers(envs, guesses):
    """The answers of several games, one after another, to the same guesses."""
    for env in envs:
        env.reset(num_players=1, seed=7)
    seen = [[] for _ in envs]
    for guess in guesses:
        for env, shown in zip(envs, seen, strict=True):
            env.get_observation()
            env.step(guess)
            shown.append(str(env.get_observation()[1]))
    return seen


@probe(3)
def seeds():
    moves = ["[left]", "[up]", "[right]", "[down]"] * 3
    name = "2048-v0-raw"
    alone, again = (answers([ta.make(name)], moves)[0] for _ in range(2))
    assert alone == again, "alone, a seed is an episode"
    members = answers([ta.make(name) for _ in range(4)], moves)
    different = len({tuple(shown) for shown in members})
    saw = f"4 members of a group, same seed, same moves, in turn: {different} different games"
    return Finding(different > 1, saw)


@probe(15)
def leaks():
    env = ta.make("GuessTheNumber-v0")
    fresh = first_observation(env, 3)
    env.step("[4]")
    env.get_observation()
    used = first_observation(env, 3)
    saw = (
        f"the first observation of a used game has {len(used)} characters, of a fresh one "
        f"{len(fresh)}: the wrapper keeps the episode before"
    )
    if used == fresh:
        saw = "a used game begins like a fresh one"
    return Finding(used != fresh and "[4]" in used, saw)


main("textarena")
