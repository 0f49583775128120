"""The settings ``policy`` and ``partner``: what samples the actions of the roles of an episode."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rl.policies.engine import PolicyChoice
from rl.policies.partner import NoPartner, PartnerChoice, PartnerEngine
from rl.policies.partner_models import LocalPartner, OpenAIPartner
from rl.policies.partner_script import ScriptEngine
from rl.policies.registration import find_policy, policy_names
from rl.settings.parsing.choice import Build, Choice
from rl.settings.parsing.unknown_keys import unknown

_PARTNERS: dict[str, type[PartnerEngine]] = {
    "none": NoPartner,
    "local": LocalPartner,
    "openai": OpenAIPartner,
    "script": ScriptEngine,
}


def _resolve(name: str) -> tuple[type[Any], Mapping[str, Any], Build]:
    if name not in (names := policy_names()):
        raise unknown("policy", name, names)
    engine = find_policy(name)
    return engine, {}, lambda values: PolicyChoice(name, engine(**values))


def _resolve_partner(name: str) -> tuple[type[Any], Mapping[str, Any], Build]:
    if name not in _PARTNERS:
        raise unknown("partner", name, list(_PARTNERS))
    engine = _PARTNERS[name]
    return engine, {}, lambda values: PartnerChoice(name, engine(**values))


POLICY = Choice(_resolve, default="local", names=policy_names)
PARTNER = Choice(_resolve_partner, default="none", names=lambda: list(_PARTNERS))
