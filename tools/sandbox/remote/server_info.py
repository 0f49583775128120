"""Queries the properties of a server's sandbox."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import aiohttp
from yarl import URL

from tools.sandbox.backends.launcher import LEVELS
from tools.sandbox.errors import SandboxUnavailable
from tools.sandbox.limits import Limits
from tools.sandbox.remote import wire

CONNECT_S = 10.0
"""Seconds within which a server must answer a request that runs no program."""


def checked_url(text: str) -> URL:
    """``text`` as the URL of a server: scheme, host and port.

    Raises:
        ValueError: ``text`` is not such a URL.
    """
    url = URL(text)
    more = (url.user, url.password, url.path.strip("/"), url.query_string, url.fragment)
    if url.scheme not in ("http", "https") or not url.host or any(more):
        shown = text.rpartition("@")[2]  # the part before "@" may have a password
        raise ValueError(
            f"sandbox ({shown!r}) must be http(s)://HOST:PORT and nothing more: the token belongs "
            f"into {wire.TOKEN_VARIABLE}"
        )
    return url.origin()


@dataclass(frozen=True)
class ServerInfo:
    """Properties of a server's sandbox."""

    version: int
    backend: str
    isolation: str
    limits_enforced_by: str
    lost: tuple[str, ...]
    limits: Limits
    workers: int


async def query_server(
    http: aiohttp.ClientSession, url: URL, min_isolation: str | None
) -> ServerInfo:
    """The properties of the sandbox that the server at ``url`` offers.

    Raises:
        SandboxUnavailable: no server answers, or its isolation is too weak.
    """
    try:
        async with asyncio.timeout(CONNECT_S), http.get("/sandbox") as response:
            if response.status != 200:
                raise _refusal(response, url, "Authorization" in http.headers)
            data = wire.unpack(await response.read())
        if data["version"] != wire.VERSION:
            raise SandboxUnavailable(
                f"{url} speaks version {data['version']} of the protocol, this is "
                f"version {wire.VERSION}: install the same turnwise on both machines"
            )
        info = ServerInfo(**{**data, "limits": wire.read_limits(data["limits"])})
    except (aiohttp.ClientError, OSError) as error:  # TimeoutError is one
        raise SandboxUnavailable(
            f"no sandbox answers at {url} ({error or type(error).__name__}): start one "
            "with `python -m tools.sandbox serve`"
        ) from None
    except (KeyError, TypeError, wire.WireError) as error:
        raise SandboxUnavailable(f"what answers at {url} is no sandbox: {error}") from None
    if LEVELS.index(info.isolation) < LEVELS.index(min_isolation or LEVELS[0]):
        raise SandboxUnavailable(
            f"the sandbox at {url} is {info.backend} with isolation {info.isolation}, "
            f"below min_isolation ({min_isolation!r}): serve a stronger one"
        )
    return info


def _refusal(response: aiohttp.ClientResponse, url: URL, had_token: bool) -> SandboxUnavailable:
    if response.status == 401:
        what = "refuses the token" if had_token else "asks for a token, and none is set"
        return SandboxUnavailable(f"{url} {what}: set {wire.TOKEN_VARIABLE} to the server's")
    return SandboxUnavailable(f"{url} answers {response.status} {response.reason}")
