"""Errors as OpenAI's API words them: a status, and a body that every SDK reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class ApiError(Exception):
    """Raised to answer a request with an error.

    SDKs repeat requests that were answered with 409, 429 or a status from 500 on, unless told not
    to. Nothing here is mended by asking again: the header says so.
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    """OpenAI's ``type``."""
    param: str | None = None
    """The field of the request that is wrong."""
    code: str | None = None

    headers = {"x-should-retry": "false"}  # noqa: RUF012 (read only, the same for all)

    def __str__(self) -> str:
        return self.message

    def body(self) -> Mapping[str, Any]:
        """What the answer holds."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


def bad_request(param: str, problem: str, code: str | None = None) -> ApiError:
    """A request one of whose fields is wrong."""
    return ApiError(400, f"{param}: {problem}", param=param, code=code)
