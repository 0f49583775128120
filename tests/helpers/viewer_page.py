"""The viewer's page in Chromium, for tests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp.test_utils import TestServer

from benchmarks.viewer.browser import Browser, find_chromium, open_browser
from rl.viewer.runs import Runs
from rl.viewer.server import application

CHROMIUM = find_chromium()
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
TEXT = "document.getElementById('main').innerText"


@asynccontextmanager
async def page_of(runs: Runs) -> AsyncIterator[tuple[Browser, str]]:
    """A browser, and the address of a server that shows the runs."""
    assert CHROMIUM is not None
    served = TestServer(application(runs, "127.0.0.1"))
    async with served as server, open_browser(CHROMIUM) as browser:
        await browser.size(1280, 800)
        yield browser, f"http://127.0.0.1:{server.port}/"
