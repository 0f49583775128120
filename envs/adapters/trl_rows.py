"""The rows of a TRL environment as tasks, and its methods as tools."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable
from typing import Any

from envs.datasets import Row, load_rows
from envs.datasets.splits import Dataset, arrange
from envs.episode import EnvFailure
from tools.function import FunctionTool
from tools.references import kept_while_unchanged
from tools.threads import in_thread
from tools.tool import BadArguments, ToolFailure

RULES = (
    'To call a function, write <tool_call>{"name": ..., "arguments": {...}}</tool_call>. To end, '
    "write an answer without a call. The functions, in JSON:"
)
NO_TOOLS = ("reset", "get_reward")


@kept_while_unchanged
def load_tasks(env_type: Any) -> Dataset[Row]:
    """The rows of a ``TrlEnv``.

    Raises:
        ValueError: the rows cannot be read.
    """
    rows = load_rows(env_type.rows)
    found = []
    for row in rows:
        prompt_of(row)
        found.append((row, json.dumps(row.columns, sort_keys=True, default=str), row))
    return arrange(found, env_type.__name__)


def prompt_of(row: Row) -> list[tuple[str, str]]:
    """The messages of a row's prompt, as pairs of a role and a text.

    Raises:
        ValueError: a message has no text, or holds a call of a tool.
    """
    prompt = row.columns.get("prompt", "")
    if isinstance(prompt, str):
        return [("user", prompt)]
    for message in prompt:
        if not isinstance(message["content"], str) or message.get("tool_calls"):
            raise ValueError(f"{row.where}: prompt: each message must be a text, not {message}")
    return [(message["role"], message["content"]) for message in prompt]


@functools.cache
def described(environment: Any) -> str:
    """The text that describes the tools of TRL's class to the agent."""
    # Inspects the class, because an instance may open a connection.
    tools = functions(environment.__new__(environment)).values()
    schemas = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        for tool in tools
    ]
    return "\n".join([RULES, *map(json.dumps, schemas)])


def functions(environment: Any) -> dict[str, FunctionTool]:
    """The tools of an instance of TRL's class, by name. As in TRL, each public method is a tool.

    Raises:
        ValueError: a method has no type annotation or no description.
    """
    names = [name for name, _ in inspect.getmembers(type(environment), inspect.isfunction)]
    public = [name for name in names if not name.startswith("_") and name not in NO_TOOLS]
    return {name: _function(getattr(environment, name)) for name in public}


def _function(method: Callable[..., Any]) -> FunctionTool:
    """A tool that calls a method and returns ``str`` of the result. Plain methods use a thread."""

    @functools.wraps(method)
    async def call(**arguments: Any) -> str:
        try:
            if inspect.iscoroutinefunction(method):
                return str(await method(**arguments))
            return str(await in_thread(functools.partial(method, **arguments)))
        except EnvFailure as error:
            raise ToolFailure(str(error), retryable=error.retryable) from error
        except ToolFailure:
            raise
        # TRL's contract: the agent reads any other exception of a tool.
        except Exception as error:
            raise BadArguments(str(error)) from error

    call.__annotations__ = {**method.__annotations__, "return": str}
    return FunctionTool(call)
