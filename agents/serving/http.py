"""One HTTP request to a server, with a deadline and typed failures."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import aiohttp

from agents.serving.errors import Refused, Unreachable

_RETRYABLE = (408, 425, 429)
"""Statuses below 500 after which the request may be retried."""
_LARGE = 2**18
"""A response with more characters is parsed in a thread. The limit is about 2,000 tokens."""
_MAX_ERROR = 300
"""Maximum number of characters of a server's error that messages quote."""


async def call(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    deadline_s: float,
    body: Mapping[str, Any] | None = None,
    *,
    as_text: bool = False,
    keep_alive: bool = False,
) -> Any:
    """Make a request. Returns the response's JSON, or its text with ``as_text``.

    Raises:
        Unreachable: the server does not answer in time, or reports an internal error.
        Refused: the server rejects the request.
    """
    timeout = aiohttp.ClientTimeout(total=deadline_s)
    headers = {} if keep_alive else {"Connection": "close"}
    try:
        async with session.request(
            method, url, json=body, timeout=timeout, headers=headers
        ) as response:
            text = await response.text()
            status = response.status
    except TimeoutError as error:
        raise Unreachable(f"{url} did not answer within {deadline_s:g} s") from error
    # A closed session raises RuntimeError; a response may be invalid text.
    except (aiohttp.ClientError, OSError, RuntimeError, UnicodeDecodeError) as error:
        raise Unreachable(f"{url}: {type(error).__name__}: {error}") from error
    if status >= 500 or status in _RETRYABLE:
        raise Unreachable(f"{url} answered {status}: {_error_in(text)}")
    if status >= 400:
        raise Refused(f"{url} answered {status}: {_error_in(text)}", status)
    if as_text:
        return text
    try:
        if len(text) > _LARGE:
            return await asyncio.to_thread(_parsed, text)
        return json.loads(text) if text else {}
    except json.JSONDecodeError as error:
        raise Unreachable(f"{url} answered no JSON: {text[:_MAX_ERROR]}") from error


def _parsed(text: str) -> Any:
    """``json.loads`` for a thread beside the event loop.

    Without hooks, the parser in C holds the interpreter's lock until it ends. Here it calls hooks
    in Python, and during these calls the event loop's thread can run.
    """
    return json.loads(text, parse_int=lambda digits: int(digits), object_hook=lambda found: found)


def _error_in(text: str) -> str:
    """The message of a server's error."""
    try:
        message = json.loads(text)["error"]["message"]
    except (json.JSONDecodeError, KeyError, TypeError):
        message = text
    return str(message)[:_MAX_ERROR]
