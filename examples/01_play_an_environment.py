"""Play one episode of each built-in environment with its gold policy, through Gymnasium's face.

Ids with a slash, as in ``reasoning-gym/gcd-v0``, are other libraries' tasks. ``harbor-v0`` plays
task folders of your own; ``minigrid-v0`` and ``textworld-v0`` need an extra.

Run with: python examples/01_play_an_environment.py

Prints:
    === code-sandbox-v0
    Write f(xs) in Python: ...
    --- action
    def f(xs): return ...
    --- reward 1 from {'hidden_tests': 1.0, ...}
    ...
    === sudoku-v0
    ...
    --- reward 1 from {'solved': 1.0}
"""

from __future__ import annotations

import envs


def main() -> None:
    for name in envs.ids():
        if "/" in name or name in ("harbor-v0", "minigrid-v0", "textworld-v0"):
            continue
        env = envs.make(name)
        observation, _ = env.reset(seed=0)
        policy = env.gold_policy()
        print(f"=== {name}\n{observation}")
        ended = False
        while not ended:
            action = policy(observation)
            observation, reward, terminated, truncated, info = env.step(action)
            ended = terminated or truncated
            print(f"--- action\n{action}\n--- observation\n{observation}")
        print(f"--- reward {reward:g} from {info['rewards']}\n")
        env.close()


if __name__ == "__main__":
    main()
