"""Studies' own environments: ``python -m benchmarks.studies.worlds rl.train env=talk``."""

from __future__ import annotations

from envs.registration import register

WORLDS = {
    "talk-v0": "benchmarks.studies.worlds.talk:TalkEnv",
    "reflective-math-v0": "benchmarks.studies.worlds.reflective:ReflectiveMathEnv",
}


def register_worlds() -> None:
    """Make them known in this process, once."""
    for env_id, where in WORLDS.items():
        register(env_id, where)
