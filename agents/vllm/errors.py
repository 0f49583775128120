"""How a vLLM fails whoever asks it, wherever it runs."""

from __future__ import annotations


class Unreachable(Exception):
    """Raised when a server does not answer, or answers that it is broken."""


class Lost(Unreachable):
    """Raised for a request whose server was found to be gone or to hang by others."""


class Broken(Unreachable):
    """Raised when a server answers what cannot be: only a new start mends it."""


class Refused(Exception):
    """Raised when a server answers that the request is wrong; ``status`` is the answer's."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
