"""Policy engines by name: ``policy=NAME`` on the command line."""

from __future__ import annotations

import dataclasses
from typing import Any

from rl.errors import UsageError
from rl.policies.engine import PolicyEngine
from tools.registry import PluginImportError, Registry

_registry = Registry("policy", "turnwise.policies")
_OWN = {
    "local": "rl.policies.local:Local",
    "vllm-server": "rl.policies.vllm:VLLMServers",
    "vllm-engine": "rl.policies.vllm:VLLMInProcess",
    "openai": "rl.policies.openai:OpenAIEndpoint",
}
"""turnwise's own policy engines."""


def register_policy(name: str, engine: type[PolicyEngine] | str) -> None:
    """Register a policy engine in this process.

    An ``engine`` of the form ``"module:attribute"`` is imported on first use.

    Raises:
        TypeError: ``engine`` is not a policy engine.
        ValueError: another policy engine has the name.
    """
    if not isinstance(engine, str):
        _check(engine)
    _registry.register(name, engine)


def policy_names() -> list[str]:
    """Names of all policy engines: first turnwise's own, then all others in alphabetical order."""
    return [*_OWN, *(name for name in _registry.names() if name not in _OWN)]


def find_policy(name: str) -> type[PolicyEngine]:
    """The policy engine with this name.

    Raises:
        UnknownNameError: no policy engine has the name.
        UsageError: the registered object fails to import, or is not a policy engine.
    """
    try:
        found = _registry.get(name)
        _check(found)
    except PluginImportError as error:
        raise UsageError(str(error)) from error
    except TypeError as error:
        raise UsageError(f"policy {name!r}: {error}") from error
    return found  # type: ignore[no-any-return]


def _check(engine: Any) -> None:
    """Check that ``engine`` is a usable policy engine; otherwise raise TypeError."""
    if not (isinstance(engine, type) and issubclass(engine, PolicyEngine)):
        raise TypeError(f"{engine!r} is not a subclass of rl.policies.engine.PolicyEngine")
    if engine.__abstractmethods__:
        raise TypeError(f"{engine.__name__} does not implement open")
    if "__dataclass_fields__" not in vars(engine):
        raise TypeError(f"{engine.__name__} is not a frozen dataclass: its fields are its settings")
    for option in dataclasses.fields(engine):
        if option.default is dataclasses.MISSING:
            raise TypeError(f"{engine.__name__}.{option.name} has no default value")


for _name, _engine in _OWN.items():
    register_policy(_name, _engine)
