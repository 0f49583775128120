"""``envs.make``: environments by versioned id, whether built in, from plug-ins or from files."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

import gymnasium

from envs.datasets.options import check_all
from envs.env import EnvOptions, TextEnv
from envs.user_files import class_of, full_reference, is_reference
from tools.registry import PluginImportError, Registry, closest

_ID = re.compile(r"(?P<name>([a-z0-9][a-z0-9_-]*/)?[a-z0-9][a-z0-9_-]*)-v(?P<version>\d+)")
_registry = Registry("environment", "turnwise.envs", _ID)

NAMESPACE = "turnwise"
"""Gymnasium's namespace for ids that have no namespace."""


def register(env_id: str, env_type: type[TextEnv[Any, Any]] | str) -> None:
    """Register an environment class, or ``"module:Class"``, which is imported at first use.

    Raises:
        ValueError: the id is taken, or does not have the form ``name-vN``.
    """
    if not _ID.fullmatch(env_id):
        raise ValueError(
            f"environment id {env_id!r} must be lower case and end in a version: my-env-v0, "
            f"or family/my-env-v0"
        )
    _registry.register(env_id, env_type)
    _register_with_gymnasium(env_id)


def ids() -> list[str]:
    """All registered ids, sorted, including plug-ins."""
    return _registry.names()


def owner(env_id: str) -> str:
    """The distribution whose plug-in registers the id.

    Returns "" if the environment is built in, or was registered in this process.
    """
    return _registry.owner(env_id)


def resolve(name: str) -> str:
    """The full id of a name. A bare name becomes its newest version, a file its absolute path.

    Raises:
        UnknownNameError: there is no such environment; the message lists known ids and the closest
            one.
        PluginImportError: a file fails to import, or holds no environment.
    """
    if is_reference(name):
        return full_reference(name)
    name = name.removeprefix(f"{NAMESPACE}/")
    known = ids()
    if name in known:
        return name
    versions = [
        (int(match["version"]), env_id)
        for env_id in known
        if (match := _ID.fullmatch(env_id)) and match["name"] == name
    ]
    if not versions:
        raise _registry.unknown(name, known)
    return max(versions)[1]


def env_type(name: str) -> type[TextEnv[Any, Any]]:
    """The class of an id, of a bare name, or of a file's ``path.py:MyEnv``.

    Raises:
        UnknownNameError: there is no such environment.
        PluginImportError: the plug-in fails to import, or the class is not a TextEnv.
    """
    if is_reference(name):
        return class_of(name)
    env_id = resolve(name)
    found = _registry.get(env_id)
    if not (isinstance(found, type) and issubclass(found, TextEnv)):
        raise PluginImportError(
            f"environment {env_id!r} is {found!r}, which is no subclass of TextEnv"
        )
    return found


def make(name: str, services: Mapping[str, Any] | None = None, **options: Any) -> TextEnv[Any, Any]:
    """Make an environment: ``envs.make("code-sandbox", max_turns=2)``.

    Args:
        name: an id, or a bare name for its newest version.
        services: services that the caller opened (see ``TextEnv.open_services``).
        options: fields of the environment's options.

    Raises:
        UnknownNameError: there is no such environment.
        TypeError: the environment has no such option; the message lists its options.
        ValueError: an option's value is out of range.
    """
    return make_from(resolve(name), options_of(name, options), services)


def options_of(name: str, values: Mapping[str, Any]) -> EnvOptions:
    """An environment's options: these values, and defaults for all other fields.

    Raises:
        UnknownNameError: there is no such environment.
        TypeError: the environment has no such option; the message lists its options.
        ValueError: an option's value is out of range.
    """
    kind = env_type(name).Options
    known = [f.name for f in fields(kind)]
    for option in values:
        if option not in known:
            hint = closest(option, known)
            meant = f" Did you mean {hint!r}?" if hint else ""
            raise TypeError(
                f"{resolve(name)} has no option {option!r}.{meant} Known: {', '.join(known)}."
            )
    return kind(**values)


def make_from(
    env_id: str, options: EnvOptions, services: Mapping[str, Any] | None = None
) -> TextEnv[Any, Any]:
    """Make an environment from an options object. Rollouts call this once per episode."""
    # Every subclass takes (options, services): check_env tests this part of the contract.
    kind = cast(Any, env_type(env_id))
    check_all(kind, options)
    try:
        env = cast("TextEnv[Any, Any]", kind(options, services=services))
    except TypeError as error:
        if _takes(kind, options, services):
            raise
        raise TypeError(
            f"{kind.__name__}.__init__ must be (self, options, services=None), and call "
            f"super().__init__(options, tasks, services): {error}"
        ) from error
    if "options" not in vars(env):
        raise TypeError(
            f"{kind.__name__}.__init__ must call super().__init__(options, tasks, services)"
        )
    env.env_id = env_id
    return env


def _takes(kind: Any, options: EnvOptions, services: Mapping[str, Any] | None) -> bool:
    """Whether a class's constructor accepts the arguments ``options`` and ``services``."""
    try:
        inspect.signature(kind).bind(options, services=services)
    except TypeError:
        return False
    return True


def _gymnasium_id(env_id: str) -> str:
    # Gymnasium's ids have at most one namespace.
    return env_id if "/" in env_id else f"{NAMESPACE}/{env_id}"


def _register_with_gymnasium(env_id: str) -> None:
    def build(**options: Any) -> TextEnv[Any, Any]:
        # Gymnasium passes render_mode to every entry point; text needs no rendering.
        options.pop("render_mode", None)
        return make(env_id, **options)

    gymnasium.register(
        _gymnasium_id(env_id), entry_point=build, disable_env_checker=True, order_enforce=False
    )


def register_plugins_with_gymnasium() -> None:
    """Make ``gymnasium.make("turnwise/...")`` find installed plug-ins, without importing them."""
    for env_id in ids():
        if _gymnasium_id(env_id) not in gymnasium.registry:
            _register_with_gymnasium(env_id)
