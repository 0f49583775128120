"""Errors for agents, in the format of OpenAI's API, and warnings for the user."""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

logger = logging.getLogger(__name__)


@dataclass
class ApiError(Exception):
    """Raised to answer a request with an error.

    By default, SDKs retry requests after status 409, 429, or 500 and above. A retry cannot succeed
    here, so a header of the response disables retries.
    """

    status: int
    message: str
    kind: str = "invalid_request_error"
    """The error's ``type`` in OpenAI's API."""
    param: str | None = None
    """Name of the wrong field of the request, or None."""
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


@functools.cache
def warn_once(text: str) -> None:
    """Log a warning only once, even if many episodes cause it."""
    logger.warning("%s", text)
