"""Export to verl: an environment's tasks as Parquet, and a reward function for them.

    write_parquet("train.parquet", "knights-knaves", 10_000)
    custom_reward_function.path=.../envs/adapters/verl.py custom_reward_function.name=compute_score

``compute_score`` passes a response to the environment as the only action, and returns its reward.
For math-v0, search-qa-v0 and code-sandbox-v0, verl's own reward functions can read ``ground_truth``
as well. An ``EnvFailure`` ends verl's step, because verl has no type for infrastructure failures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from envs.datasets.verl_code import json_of_tests
from envs.env import TextEnv
from envs.registration import make
from tools.references import kept_while_unchanged


def verl_rows(name: str, num_tasks: int, seed: int = 0, **options: Any) -> Iterator[dict[str, Any]]:
    """The first ``num_tasks`` tasks of an environment as verl's rows."""
    env = make(name, **options)
    try:
        for task in range(min(num_tasks, len(env.tasks))):
            gold = _ground_truth(env, env.tasks[task])
            first, _ = env.reset(seed=seed, options={"task": task})
            rules = env.system_prompt
            system = [{"role": "system", "content": rules}] if rules else []
            yield {
                "data_source": f"turnwise/{env.env_id}",
                "prompt": [*system, {"role": "user", "content": first}],
                "ability": env.env_id.rsplit("-v", 1)[0],
                "reward_model": {"style": "rule", "ground_truth": gold},
                "extra_info": {
                    **{"split": env.options.split, "index": task, "seed": seed},
                    **{"env": env.env_id, "options": json.dumps(options)},
                },
            }
    finally:
        env.close()


def write_parquet(
    path: str | Path, name: str, num_tasks: int, seed: int = 0, **options: Any
) -> int:
    """Write :func:`verl_rows` to a file and return the number of rows. Needs pyarrow."""
    import pyarrow
    import pyarrow.parquet

    rows = list(verl_rows(name, num_tasks, seed, **options))
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return len(rows)


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: Mapping[str, Any]
) -> float:
    """The reward of a response, with the signature of verl's reward functions.

    The row's environment computes the reward.

    Raises:
        EnvFailure: infrastructure failed.
        ValueError: one response does not end the episode.
    """
    env = _env(extra_info["env"], extra_info["options"]).group(1)[0]
    try:
        env.reset(seed=int(extra_info["seed"]), options={"task": int(extra_info["index"])})
        last = env.step(solution_str)
        if not (last.terminated or last.truncated):
            raise ValueError(f"{data_source}: one response is not an episode of {env.env_id}")
        return last.reward
    finally:
        env.close()


@kept_while_unchanged
def _env(env_id: str, options: str) -> TextEnv[Any, Any]:
    """The environment with these options. It is cached; its copies share the same services."""
    return make(env_id, **json.loads(options))


def _ground_truth(env: TextEnv[Any, Any], task: Any) -> Any:
    """The answer, the answers or the tests of a task, for verl's own functions; otherwise empty."""
    kind = env.env_id.rsplit("-v", 1)[0]
    if kind == "math":
        return task.answer
    if kind == "search-qa":
        return {"target": list(task.answers)}
    return json_of_tests(task.entry_point, task.hidden) if kind == "code-sandbox" else ""
