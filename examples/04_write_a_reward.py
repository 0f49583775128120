"""A reward of your own, by name: it joins built-in ones in a formula, here for search-qa.

Run with: python examples/04_write_a_reward.py

The same formula trains: python -m rl.train env=search-qa "env.rubric=f1 + 0.2*brief" in a package
that registers ``brief`` (docs/plugins.md).

Prints:
    rewards between 0 and 1.2
    short and right: {'f1': 1.0, 'brief': 0.2}
    long and right:  {'f1': 0.28..., 'brief': 0.0}
    wrong:           {'f1': 0.0, 'brief': 0.2}
"""

from __future__ import annotations

import envs
from envs.rewards import Reward, Transcript, register


def brief(words: int = 3) -> Reward:
    """1 for an answer of a few words."""

    def score(transcript: Transcript) -> float:
        return float(0 < len((transcript.answer or "").split()) <= words)

    return Reward("brief", score)


def main() -> None:
    register("rubric", "brief", brief)
    env = envs.make("search-qa", rubric="f1 + 0.2*brief")
    low, high = env.reward_range
    print(f"rewards between {low:g} and {high:g}")
    gold = gold_answer(env)
    for name, answer in {
        "short and right: ": gold,
        "long and right:  ": f"I think that it is {gold}",
        "wrong:           ": "nothing",
    }.items():
        env.reset(seed=0)
        result = env.step(f"<think> </think> <answer> \\boxed{{{answer}}} </answer>")
        print(f"{name}{result.info['rewards']}")
    env.close()


def gold_answer(env: envs.TextEnv) -> str:
    """The answer that the environment's gold policy gives to the task of seed 0."""
    observation, _ = env.reset(seed=0)
    policy, ended = env.gold_policy(), False
    while not ended:
        action = policy(observation)
        observation, _, terminated, truncated, _ = env.step(action)
        ended = terminated or truncated
    return action.split("\\boxed{")[1].split("}")[0]


if __name__ == "__main__":
    main()
