"""OpenEnv: an environment served as its template writes one, and its generic client."""

from __future__ import annotations

import asyncio
import random
import socket
import threading
import time
from contextlib import asynccontextmanager

import uvicorn
from openenv.core.env_server import create_fastapi_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State
from openenv.core.generic_client import GenericEnvClient
from report import Finding, main, probe

NUM_SESSIONS = 8
STEP_S = 0.5


class Do(Action):
    """An action: do nothing, wait, fail or hang."""

    what: str = ""


class Seen(Observation):
    """An observation."""

    text: str = ""


class Rolling(Environment):
    """Rolls dice from its own generator; a session has one of these."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.rng = random.Random()

    def reset(self, seed=None, episode_id=None, **_):
        self.rng = random.Random(seed)
        return self._seen()

    def step(self, action, timeout_s=None, **_):
        if action.what == "wait":
            time.sleep(STEP_S)
        elif action.what == "fail":
            raise ConnectionError("the database is gone")
        elif action.what == "hang":
            time.sleep(60)
        return self._seen()

    @property
    def state(self):
        return State()

    def _seen(self):
        return Seen(text=str(self.rng.randint(1, 1000)), reward=0.0, done=False)


def serve():
    app = create_fastapi_app(Rolling, Do, Seen, max_concurrent_envs=2 * NUM_SESSIONS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error"))
    threading.Thread(target=server.run, daemon=True).start()
    while not server.started:
        time.sleep(0.05)
    return f"http://127.0.0.1:{port}"


URL = serve()


@asynccontextmanager
async def sessions(count, **settings):
    clients = [GenericEnvClient(base_url=URL, **settings) for _ in range(count)]
    for client in clients:
        await client.connect()
    try:
        yield clients
    finally:
        await asyncio.gather(*(client.close() for client in clients), return_exceptions=True)


@probe(1)
def blocking():
    async def play():
        async with sessions(NUM_SESSIONS) as clients:
            await asyncio.gather(*(client.reset() for client in clients))
            began = time.perf_counter()
            await asyncio.gather(*(client.step({"what": "wait"}) for client in clients))
            return time.perf_counter() - began

    took = asyncio.run(play())
    saw = f"{NUM_SESSIONS} sessions whose plain step takes {STEP_S} s: {took:.1f} s for all"
    return Finding(took > NUM_SESSIONS * STEP_S / 2, saw)


@probe(3)
def seeds():
    async def play():
        async with sessions(4) as clients:
            await asyncio.gather(*(client.reset(seed=7) for client in clients))
            seen = await asyncio.gather(*(client.step({"what": ""}) for client in clients))
            return {result.observation["text"] for result in seen}

    different = len(asyncio.run(play()))
    saw = f"the seed of reset reaches the environment: {different} game in 4 sessions"
    return Finding(different > 1, saw)


@probe(4)
def failing():
    async def play():
        async with sessions(2) as (one, other):
            await asyncio.gather(one.reset(), other.reset())
            made = await asyncio.gather(
                one.step({"what": "fail"}), other.step({"what": ""}), return_exceptions=True
            )
            return [type(result).__name__ for result in made]

    failed, fine = asyncio.run(play())
    saw = f"a step that fails raises {failed} in its own session; the other's is a {fine}"
    return Finding(failed == "StepResult" or fine != "StepResult", saw)


@probe(11)
def hanging():
    async def play():
        async with sessions(1, message_timeout_s=2.0) as (client,):
            await client.reset()
            began = time.perf_counter()
            try:
                async with asyncio.timeout(20):
                    await client.step({"what": "hang"})
                how = "returned"
            except Exception as error:
                how = f"raised {type(error).__name__}"
            return how, time.perf_counter() - began

    how, took = asyncio.run(play())
    saw = f"a step that hangs {how} after {took:.1f} s with message_timeout_s=2 (60 by default)"
    return Finding(took > 10, saw)


main("openenv")
