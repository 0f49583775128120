"""``python -m envs info NAME``: an environment's description, options and an example episode."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

import envs
from envs.command.expected import located
from envs.command.listing import card_of
from envs.command.options import read_options
from envs.env import EnvOptions
from envs.episode import EnvFailure
from envs.play import gold_of, play
from envs.registration import owner
from tools.field_docs import field_docs
from tools.sandbox.errors import SandboxUnavailable

_WIDTH, _INDENT = 100, " " * 6


def info(name: str, words: Sequence[str] = ()) -> str:
    """The description of one environment.

    Args:
        name: an id, or a bare name.
        words: options of the example, as ``option=value``.

    Raises:
        UnknownNameError, PluginImportError: as ``envs.env_type``.
        ValueError: an option is wrong.
        CheckFailed: the environment's code raised an error.
    """
    env_id = envs.resolve(name)
    kind = envs.env_type(env_id)
    card, dist = card_of(kind), owner(env_id)
    lines = [f"{env_id}" + (f" (from {dist})" if dist else ""), ""]
    lines += [*inspect.cleandoc(kind.__doc__ or "").splitlines(), ""]
    module = inspect.cleandoc(inspect.getmodule(kind).__doc__ or "")
    lines += [*module.splitlines(), ""] if module else []
    lines += [f"reward: {card.reward}", f"needs: {card.needs or 'nothing else'}"]
    values = read_options(kind.Options, words)
    if values:
        kind.Options(**values)  # Invalid values are the caller's mistake.
    with located(kind, env_id):
        lines += _example(env_id, values)
    lines += ["", "options:", *_options(kind.Options)]
    return "\n".join(lines) + "\n"


def _options(kind: type[EnvOptions]) -> Iterator[str]:
    docs = field_docs(kind)
    for option in fields(kind):
        default = "" if option.default is MISSING else f"={option.default!r}"
        yield f"  {option.name}{default}"
        yield from textwrap.wrap(
            docs.get(option.name, ""), _WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT
        )


def _example(env_id: str, values: Mapping[str, Any]) -> Iterator[str]:
    """Lines with properties under these options, and an episode of the gold policy."""
    try:
        env = envs.make(env_id, **values)
    except ValueError as error:
        yield f"an episode: needs options ({' '.join(str(error).split())})"
        return
    low, high = env.reward_range
    yield f"reward range: {low:g} to {high:g}"
    yield f"reward floor: {env.reward_floor:g}, the most that an empty or random text earns"
    yield f"success: {env.success_score or 'the return'}"
    try:
        played = play(env, gold_of(env), seed=0)
    except (NotImplementedError, EnvFailure, SandboxUnavailable) as error:
        yield f"an episode: none of the gold policy ({error})"
        return
    finally:
        env.close()
    last = played.steps[-1].info
    yield f"rewards: {', '.join(last['rewards'])}"
    yield f"scores: {', '.join(last['scores']) or 'none'}"
    yield "an episode of the gold policy:"
    if env.system_prompt:
        yield textwrap.indent(env.system_prompt, "  : ", lambda _: True)
    seen = [played.first, *(step.observation for step in played.steps)]
    for observation, action in zip(seen, played.actions, strict=False):
        yield textwrap.indent(observation, "  < ", lambda _: True)
        yield textwrap.indent(action, "  > ", lambda _: True)
    yield f"  it earns {played.reward:g}"
