"""Chromium without a window, driven by its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
_START_S, _ANSWER_S = 60.0, 60.0


def find_chromium() -> str | None:
    """The path of Chromium, or None if this machine has none."""
    return next((path for name in _NAMES if (path := shutil.which(name))), None)


class Browser:
    """One tab. ``problems`` collects errors of scripts and refusals of the content policy."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self.problems: list[str] = []

    async def listen(self) -> None:
        """Receive answers and events until the tab closes."""
        async for message in self._socket:
            event = json.loads(message.data)
            if "id" in event:
                answer = self._answers.pop(event["id"])
                # A caller whose deadline passed no longer waits.
                if not answer.done():
                    answer.set_result(event)
            elif event["method"] == "Runtime.exceptionThrown":
                details = event["params"]["exceptionDetails"]
                self.problems.append(details.get("exception", details).get("description", "error"))
            elif event["method"] == "Log.entryAdded":
                entry = event["params"]["entry"]
                if entry["level"] == "error":
                    self.problems.append(entry["text"])

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        request = {"id": self._number, "method": method, "params": parameters}
        await self._socket.send_str(json.dumps(request))
        async with asyncio.timeout(_ANSWER_S):
            found = await answer
        if "error" in found:
            raise RuntimeError(f"{method}: {found['error']['message']}")
        return found["result"]

    async def go(self, url: str) -> None:
        """Open a page; an equal page with another fragment is not loaded again."""
        await self.send("Page.navigate", url=url)

    async def evaluate(self, script: str) -> Any:
        """The value of a script, which may be a promise."""
        found = await self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(found["result"].get("description", script))
        return found["result"].get("value")

    async def until(self, script: str, seconds: float = 60.0) -> Any:
        """The value of a script as soon as it is true."""
        async with asyncio.timeout(seconds):
            while True:
                try:
                    if found := await self.evaluate(script):
                        return found
                except RuntimeError:
                    # The page is being replaced.
                    pass
                await asyncio.sleep(0.05)

    async def press(self, key: str) -> None:
        """Press and release a key, such as "j" or "Enter"."""
        text = {"text": key} if len(key) == 1 else {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            given = text if kind == "keyDown" else {}
            await self.send("Input.dispatchKeyEvent", type=kind, key=key, **given)

    async def size(self, width: int, height: int, scale: float = 1.0) -> None:
        """Give the page a size."""
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=False,
        )

    async def dark(self, on: bool) -> None:
        """Choose the dark or the light colours."""
        value = "dark" if on else "light"
        features = [{"name": "prefers-color-scheme", "value": value}]
        await self.send("Emulation.setEmulatedMedia", features=features)

    async def screenshot(self, path: Path) -> None:
        """Write a picture of what is in sight."""
        found = await self.send("Page.captureScreenshot", format="png", optimizeForSpeed=False)
        path.write_bytes(base64.b64decode(found["data"]))


@asynccontextmanager
async def open_browser(chromium: str) -> AsyncIterator[Browser]:
    """A tab of a new Chromium, which ends with the context."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            chromium,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-extensions",
            "--disable-background-networking",
            "--remote-debugging-port=0",
            f"--user-data-dir={profile}",
            "about:blank",
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            address = await _address(Path(profile) / "DevToolsActivePort")
            async with aiohttp.ClientSession() as session:
                tabs = await (await session.get(f"{address}/json/list")).json()
                tab = next(tab for tab in tabs if tab["type"] == "page")
                url = tab["webSocketDebuggerUrl"]
                async with session.ws_connect(url, max_msg_size=0) as socket:
                    browser = Browser(socket)
                    listening = asyncio.create_task(browser.listen())
                    for domain in ("Page", "Runtime", "Log"):
                        await browser.send(f"{domain}.enable")
                    yield browser
                    listening.cancel()
        finally:
            process.terminate()
            await process.wait()


async def _address(file: Path) -> str:
    """The address that Chromium wrote to a file of its profile."""
    async with asyncio.timeout(_START_S):
        while not file.exists() or "\n" not in file.read_text():
            await asyncio.sleep(0.05)
    return f"http://127.0.0.1:{file.read_text().splitlines()[0]}"
