"""Environments of the studies: ``python -m benchmarks.studies.worlds rl.train env=talk``."""

from __future__ import annotations

from envs.registration import register

WORLDS = {
    "slow-search-v0": "benchmarks.studies.worlds.slow_search:SlowSearchEnv",
    "talk-v0": "benchmarks.studies.worlds.talk:TalkEnv",
    "letters-v0": "benchmarks.studies.worlds.letters:LettersEnv",
    "notes-v0": "benchmarks.studies.worlds.notes:NotesEnv",
    "reflective-math-v0": "benchmarks.studies.worlds.reflective:ReflectiveMathEnv",
}


def register_worlds() -> None:
    """Make them known in this process, once."""
    for env_id, where in WORLDS.items():
        register(env_id, where)
