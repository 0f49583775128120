"""Errors in the format of OpenAI's API: a status, and a body that every SDK reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass
class ApiError(Exception):
    """Raised to answer a request with an error.

    By default, SDKs retry requests after 409, 429 or a status from 500 on. A retry helps against
    none of these errors, so a header disables retries.
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    """OpenAI's ``type``."""
    param: str | None = None
    """The wrong field of the request."""
    code: str | None = None

    headers = {"x-should-retry": "false"}  # noqa: RUF012 (read only, the same for all)

    def __str__(self) -> str:
        return self.message

    def body(self) -> Mapping[str, Any]:
        """The response's body."""
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


def bad_request(param: str, problem: str, code: str | None = None) -> ApiError:
    """The error for a wrong field of a request."""
    return ApiError(400, f"{param}: {problem}", param=param, code=code)
