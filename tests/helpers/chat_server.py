"""A local server that speaks the chat completions API."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager

from aiohttp import web


class ChatServer:
    """Answers requests by a function, and keeps the requests.

    Attributes:
        answer: function from a request to a text, a message, or a response.
        requests: bodies of all requests.
        headers: their headers.
    """

    def __init__(self):
        self.answer = lambda request: "ok"
        self.requests = []
        self.headers = []
        self.url = ""

    async def complete(self, request):
        body = await request.json()
        self.requests.append(body)
        self.headers.append(request.headers)
        found = self.answer(body)
        if isinstance(found, web.StreamResponse):
            return found
        message = {"role": "assistant", "content": found} if isinstance(found, str) else found
        choice = {"index": 0, "message": message, "finish_reason": message.pop("ended", "stop")}
        usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
        return web.json_response({"choices": [choice], "usage": usage})


def refusal(status, message="no", **headers):
    text = json.dumps({"error": {"message": message}})
    return web.Response(status=status, text=text, headers=headers)


@contextmanager
def chat_server():
    """Serve in a thread of its own, so that commands in this process can use the server."""
    made, loop, ready = ChatServer(), asyncio.new_event_loop(), threading.Event()
    runner = None

    async def handle(request):
        # A test can replace the method later.
        return await made.complete(request)

    async def start():
        nonlocal runner
        app = web.Application()
        app.router.add_post("/v1/chat/completions", handle)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        ready.set()

    def serve():
        asyncio.set_event_loop(loop)
        loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(60)
