"""Loops written with the standard library alone, and a collector that plays them."""

from __future__ import annotations

import contextlib

import pytest

from agents.capture import CaptureServer
from agents.completion import SamplingParams
from agents.renderer import Renderer
from agents.scripted import ScriptedPolicy
from rl.data.conversations import Conversation, Exchange
from rl.external.collector import ExternalCollector
from rl.external.env import AgentOptions
from rl.external.program import open_program
from rl.rollout.context import EpisodeContext, EpisodeLimits
from rl.runtime.tiny import train_tokenizer
from tools.references import load_module

LOOPS = '''
import asyncio
import json
import os
import sys
import threading
import time
import urllib.error
import urllib.request

log = []
running, most = 0, 0
lock = threading.Lock()


def post(base_url, path, body):
    request = urllib.request.Request(
        f"{base_url}/{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        with error:
            raise OSError(error.read().decode()) from None


def ask(base_url, messages):
    return post(base_url, "chat/completions", {"messages": messages})["choices"][0]["message"]


def tasks(split, seed):
    return [{"digit": str(i % 3), "split": split} for i in range(12)]


def user(text):
    return {"role": "user", "content": text}


def copy(task, base_url, seed):
    """Blocking, in a function that says so."""
    log.append((task["digit"], seed))
    return float(ask(base_url, [user(task["digit"])])["content"] == task["digit"])


async def blocking(task, base_url):
    """Blocking, in a function that does not."""
    return copy(task, base_url, 0)


async def branches(task, base_url):
    """Two conversations, one of which is taken up again in another way; the reward is posted."""
    first = await asyncio.to_thread(ask, base_url, [user("0")])
    await asyncio.to_thread(ask, base_url, [user("1")])
    await asyncio.to_thread(ask, base_url, [user("0"), first, user("1")])
    await asyncio.to_thread(ask, base_url, [user("0"), first, user("2")])
    body = {"reward": {"right": 1, "brief": 0.5}, "scores": {"f1": 0.25}}
    await asyncio.to_thread(post, base_url, "reward", body)


def crashes_at_first(task, base_url):
    log.append(ask(base_url, [user(task["digit"])])["content"])
    if len(log) < 3:
        raise KeyError("not yet")
    return 1.0


def crashes(task, base_url):
    ask(base_url, [user("0")])
    sys.exit("gave up")


async def silent(task, base_url):
    await asyncio.to_thread(ask, base_url, [user("0")])


def asks_nothing(task, base_url):
    return 1.0


def twice(task, base_url):
    ask(base_url, [user("0")])
    post(base_url, "reward", {"reward": 0.0})
    return 1.0


def returns_text(task, base_url):
    return "good"


def swallows(task, base_url):
    try:
        return float(len(ask(base_url, [user("0")])))
    except OSError:
        return 1.0


def talks_on(task, base_url):
    messages = [user("0")]
    while True:
        messages += [ask(base_url, messages), user("1")]


async def hangs(task, base_url):
    await asyncio.sleep(60)


def counts(task, base_url):
    global running, most
    with lock:
        running += 1
        most = max(most, running)
    time.sleep(0.05)
    ask(base_url, [user("0")])
    with lock:
        running -= 1
    return 0.0


if __name__ == "__main__":
    task, base_url = json.load(sys.stdin), os.environ["OPENAI_BASE_URL"]
    if os.fork() == 0:
        time.sleep(60)  # Outlives the command, unless it is killed.
    said = ask(base_url, [user(task["digit"])])["content"]
    if sys.argv[1:] == ["fail"]:
        print("no luck")
        sys.exit(3)
    post(base_url, "reward", {"reward": float(said == task["digit"])})
'''


@pytest.fixture
def loops(tmp_path):
    """The file of the loops; its own for each test."""
    path = tmp_path / "loops.py"
    path.write_text(LOOPS)
    return path


@pytest.fixture(scope="session")
def digits() -> Renderer:
    return Renderer(train_tokenizer([Conversation((Exchange("0 1", "2 0"),))], 261))


@pytest.fixture
def play(loops, digits):
    """Play groups with a function of the loops, or a command; the policy says ``say(prompt)``."""

    async def play(loop, say=lambda prompt: "0", tasks=(0,), group_size=1, **settings):
        def respond(session, prompt_ids):
            text = say(digits.tokenizer.decode(list(prompt_ids)))
            return [*digits.splice(text), digits.end_token_ids[0]]

        limits = {"context_length": 1000, "max_failed": 1.0} | dict(settings.pop("limits", {}))
        name = loop if " " in loop else f"{loops}:{loop}"
        options = AgentOptions(loop=name, tasks=f"{loops}:tasks", **settings)
        async with contextlib.AsyncExitStack() as stack:
            server = await stack.enter_async_context(CaptureServer())
            collector = ExternalCollector(
                EpisodeContext(
                    env_id="agent-v0",
                    options=options,
                    services={"program": open_program(options.loop), "capture": server},
                    policy=ScriptedPolicy(respond),
                    renderer=digits,
                    sampling=SamplingParams(max_tokens=8),
                    limits=EpisodeLimits(**limits),
                ),
            )
            return await collector.collect(tasks, group_size, (0, 7))

    return play


@pytest.fixture
def module(loops):
    """The loops' module, as it was imported."""

    def module():
        return load_module(str(loops))

    return module
