"""The setting ``policy``: what samples the actions, and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl.policies.engine import PolicyChoice
from rl.policies.registration import find_policy, policy_names
from rl.settings.parsing.choice import Build, Choice
from rl.settings.parsing.unknown_keys import unknown


def _resolve(name: str) -> tuple[type[Any], Mapping[str, Any], Build]:
    if name not in (names := policy_names()):
        raise unknown("policy", name, names)
    engine = find_policy(name)
    return engine, {}, lambda values: PolicyChoice(name, engine(**values))


POLICY = Choice(_resolve, default="local", names=policy_names)
