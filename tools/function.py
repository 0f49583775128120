"""``@tools.tool``: makes a tool from a typed, documented function, and checks the definition."""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
import re
import textwrap
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_type_hints, overload

from tools.limits import CallLimits, LimitedCalls
from tools.threads import in_thread
from tools.tool import BadArguments, Tool, ToolContext, ToolFailure, ToolResult, failure_of

if TYPE_CHECKING:
    from pydantic import BaseModel

Answer = str | ToolResult
ToolFunction = Callable[..., Answer | Awaitable[Answer]]

_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Example|Examples|Note|Notes):\s*$", re.M)
_CONTEXT = "context"


class FunctionTool(Tool):
    """A tool that calls a function; made by :func:`tool`.

    Args:
        function: a plain or async function that returns a ``str`` or a :class:`ToolResult`.
        name: the tool's name, or None for the function's name.
        blocking: whether to run a plain function in a thread, so that it does not block the event
            loop.
        limits: limits of each call.
        cost: cost of a successful call in the unit that the tool uses. If the function returns a
            :class:`ToolResult` with a cost, the two costs are added.

    Raises:
        ValueError: an annotation or a description is missing, a parameter's kind or the return type
            is not supported, or an option is out of range.
    """

    def __init__(
        self,
        function: ToolFunction,
        *,
        name: str | None = None,
        blocking: bool = False,
        limits: CallLimits | None = None,
        cost: float = 0.0,
    ) -> None:
        self.name = name or function.__name__
        self.__module__, self.__qualname__ = function.__module__, function.__qualname__
        self._function = function
        self._is_async = inspect.iscoroutinefunction(function)
        self._blocking = blocking
        if blocking and self._is_async:
            raise self._wrong("is async, so blocking=True means nothing: drop one of the two")
        limits = limits or CallLimits()
        if limits.timeout_s is not None and not (self._is_async or blocking):
            raise self._wrong(
                "is plain, so timeout_s cannot interrupt it: make it async, or set blocking=True"
            )
        if not 0 <= cost < math.inf:
            raise ValueError(f"tool {self.name!r}: cost ({cost}) must be >= 0")
        self._cost = cost
        self._calls = LimitedCalls(f"tool {self.name!r}", limits)
        hints = self._hints()
        self.description, described = self._docstring(set(hints))
        self._model = self._arguments_model(hints, described)
        self.parameters = self._model.model_json_schema()
        # The title is the pydantic class's name, without meaning for a reader of the schema.
        del self.parameters["title"]

    async def __call__(
        self, arguments: Mapping[str, Any], context: ToolContext | None = None
    ) -> ToolResult:
        """Validate the arguments and run the function; see :class:`Tool`."""
        from pydantic import ValidationError

        context = context or ToolContext()
        given: object = arguments
        if not isinstance(given, Mapping):
            kind = type(given).__name__
            return self._mistake(f"{self.name}: arguments must be an object, by name, not a {kind}")
        try:
            checked = self._model.model_validate(dict(arguments))
        except ValidationError as error:
            return self._mistake(self._explain(error))
        # Not model_dump, which would turn arguments that are pydantic models into dicts.
        values = {name: getattr(checked, name) for name in type(checked).model_fields}
        if self._wants_context:
            values[_CONTEXT] = context
        try:
            answer, retries = await self._calls.run_counted(
                lambda: self._run(values), context.timeout_s
            )
        except BadArguments as error:
            return self._mistake(str(error))
        except ToolFailure:
            raise
        # The function is foreign code: any other exception is its fault, not the model's.
        except (Exception, SystemExit, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError) and _is_cancelled():
                raise  # The caller cancelled, not the function.
            raise failure_of(self.name, error) from error
        return self._answered(answer, retries)

    def _answered(self, answer: object, retries: int) -> ToolResult:
        result = answer if isinstance(answer, ToolResult) else None
        text = answer if result is None else result.text
        if not isinstance(text, str):
            raise ToolFailure(
                f"tool {self.name!r} failed: it returned {type(text).__name__}, not text",
                retryable=False,
            )
        if result is None:
            return ToolResult(text, data=text, cost=self._cost, retries=retries)
        if not self._cost and not retries:
            return result
        return replace(result, cost=result.cost + self._cost, retries=result.retries + retries)

    async def _run(self, values: dict[str, Any]) -> Answer:
        if self._blocking:
            answer = await in_thread(functools.partial(self._function, **values))
        else:
            answer = self._function(**values)
        return await answer if inspect.isawaitable(answer) else answer

    def _mistake(self, message: str) -> ToolResult:
        return ToolResult(f"Error: {message}", error=message)

    def _explain(self, error: Any) -> str:
        """Describe a pydantic ``ValidationError`` in one line for the model."""
        found = "; ".join(
            f"{'.'.join(str(part) for part in issue['loc'])}: {issue['msg']}"
            for issue in error.errors()
        )
        takes = ", ".join(self.parameters.get("properties", {})) or "no arguments"
        return f"{self.name}: {found}. It takes: {takes}."

    def _wrong(self, problem: str) -> ValueError:
        return ValueError(f"tool {self.name!r}: the function {problem}")

    def _hints(self) -> dict[str, Any]:
        """Types of the function's parameters by name, except the parameter ``context``."""
        try:
            hints = get_type_hints(self._function, include_extras=True)
        except NameError as error:
            raise self._wrong(f"has an annotation that does not resolve: {error}") from error
        parameters = inspect.signature(self._function).parameters
        for parameter in parameters.values():
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise self._wrong(f"takes {parameter}: a model can only give named arguments")
            if parameter.name not in hints:
                raise self._wrong(f"has no type for {parameter.name!r}: annotate it")
        returns = hints.pop("return", None)
        if returns not in (str, ToolResult, Answer):
            raise self._wrong(f"must be annotated to return str or ToolResult, not {returns}")
        self._wants_context = hints.pop(_CONTEXT, None) is not None
        return hints

    def _docstring(self, names: set[str]) -> tuple[str, dict[str, str]]:
        """The description of the tool, and of each parameter by name, from the Google docstring."""
        text = inspect.getdoc(self._function)
        if not text:
            raise self._wrong("has no docstring: it is what the model reads")
        parts = _SECTION.split(text)
        sections = dict(zip(parts[1::2], parts[2::2], strict=True))
        described: dict[str, str] = {}
        entries = textwrap.dedent(sections.get("Args", "").strip("\n"))
        for entry in re.split(r"\n(?=\S)", entries):
            name, colon, description = entry.partition(":")
            if colon:
                described[name.split("(")[0].strip()] = " ".join(description.split())
        described.pop(_CONTEXT, None)
        missing = sorted(names - {name for name, words in described.items() if words})
        if missing:
            raise self._wrong(f"must describe {missing[0]!r} in its docstring, under Args:")
        extra = sorted(set(described) - names)
        if extra:
            raise self._wrong(f"describes {extra[0]!r}, which is not a parameter")
        return parts[0].strip(), described

    def _arguments_model(
        self, hints: Mapping[str, Any], described: Mapping[str, str]
    ) -> type[BaseModel]:
        # Imported here: pydantic takes longer to import than all of ``import tools``.
        from pydantic import ConfigDict, Field, create_model

        parameters = inspect.signature(self._function).parameters
        fields: dict[str, Any] = {}
        for name, hint in hints.items():
            default = parameters[name].default
            required = default is inspect.Parameter.empty
            fields[name] = (
                hint,
                Field(... if required else default, description=described[name]),
            )
        model: type[BaseModel] = create_model(
            self.name, __config__=ConfigDict(extra="forbid"), **fields
        )
        return model


def _is_cancelled() -> bool:
    """Whether the current task was cancelled from outside."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@overload
def tool(function: ToolFunction, /) -> FunctionTool: ...


@overload
def tool(
    *,
    name: str | None = None,
    blocking: bool = False,
    timeout_s: float | None = None,
    retries: int = 0,
    max_concurrent: int | None = None,
    cost: float = 0.0,
) -> Callable[[ToolFunction], FunctionTool]: ...


def tool(
    function: ToolFunction | None = None,
    /,
    *,
    name: str | None = None,
    blocking: bool = False,
    timeout_s: float | None = None,
    retries: int = 0,
    max_concurrent: int | None = None,
    cost: float = 0.0,
) -> FunctionTool | Callable[[ToolFunction], FunctionTool]:
    """Make a tool from a function: ``@tool`` or ``@tool(blocking=True, timeout_s=5, retries=2)``.

    The JSON Schema is made from the parameters' types, and the descriptions from the Google
    docstring. A parameter called ``context`` receives the :class:`ToolContext` and is hidden from
    the model. The function raises :class:`BadArguments` for a mistake of the model, and
    :class:`ToolFailure` for a failure of the tool. ``timeout_s``, ``retries`` and
    ``max_concurrent`` are fields of :class:`tools.limits.CallLimits`; the other options are
    arguments of :class:`FunctionTool`.

    Raises:
        ValueError: a type or a description is missing, or an option is out of range.
    """
    limits = CallLimits(timeout_s=timeout_s, retries=retries, max_concurrent=max_concurrent)

    def make(wrapped: ToolFunction) -> FunctionTool:
        return FunctionTool(wrapped, name=name, blocking=blocking, limits=limits, cost=cost)

    return make if function is None else make(function)
