"""``python -m hung_runs WHAT key=value ...``: a run of rl.train in which something hangs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
import time
from contextlib import asynccontextmanager

import toy_envs

import envs
from agents.local import LocalPolicy
from agents.local.engine import Engine
from rl.learner.updater import Updater
from rl.run.process import closing
from rl.train import main

NEVER = 3600.0


class HungEnv(toy_envs.CopyEnv):
    """Environment in which the episodes of the first training task hang."""

    how = ""
    first: int | None = None

    async def turn(self, action):
        if self.options.split == "train" and self.chosen():
            await self.hang()
        return super().turn(action)

    def chosen(self) -> bool:
        """Whether the episode has the first task, whose episodes hang."""
        kind = type(self)
        kind.first = self.episode_id.task if kind.first is None else kind.first
        return self.episode_id.task == kind.first

    async def hang(self):
        if self.how == "awaits":
            await asyncio.Event().wait()
        elif self.how == "holds the loop":
            time.sleep(NEVER)
        elif self.how == "takes no cancelling":
            end = time.monotonic() + NEVER
            while time.monotonic() < end:
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.sleep(NEVER)


def hang_in_environment(how: str) -> None:
    HungEnv.how = how
    toy_envs.TOYS["toy-copy-v0"] = HungEnv


def hang_in_policy(times: int = 10**9) -> None:
    """Make completions never arrive, except the first six (validation)."""
    generate, calls = LocalPolicy.generate, []

    async def hung(self, *args):
        calls.append(1)
        hangs = 6 < len(calls) <= 6 + times
        completion = await generate(self, *args)
        if hangs:
            await asyncio.Event().wait()
        return completion

    LocalPolicy.generate = hung


def hang_once(kind: type, name: str, when: int = 1) -> None:
    """Make the ``when``-th call of a method, and all later ones, never return."""
    method, calls = getattr(kind, name), []

    def hung(self, *args, **kwargs):
        calls.append(1)
        if len(calls) >= when:
            time.sleep(NEVER)
        return method(self, *args, **kwargs)

    setattr(kind, name, hung)


async def never_closed(self) -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def stubborn_services(options):
    try:
        yield {}
    finally:
        end = time.monotonic() + NEVER
        while time.monotonic() < end:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(NEVER)


def thread_that_stays() -> None:
    threading.Thread(target=time.sleep, args=(NEVER,), name="stays").start()


HANGS = {
    "env awaits": lambda: hang_in_environment("awaits"),
    "env holds the loop": lambda: hang_in_environment("holds the loop"),
    "env takes no cancelling": lambda: hang_in_environment("takes no cancelling"),
    "policy": lambda: hang_once(Engine, "step", 20),
    "learner": lambda: hang_once(Updater, "update", 2),
    "policy does not close": lambda: setattr(LocalPolicy, "close", never_closed),
    "services do not close": lambda: setattr(
        toy_envs.CopyEnv, "open_services", staticmethod(stubborn_services)
    ),
    "a thread stays": thread_that_stays,
    "nothing": lambda: None,
    "one completion": lambda: hang_in_policy(1),
    "every completion": hang_in_policy,
}


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    HANGS[what]()
    closing.EXIT_S = 2.0
    toy_envs.register()
    assert envs.env_type("toy-copy-v0") is toy_envs.TOYS["toy-copy-v0"]
    closing.exit_process(main(words))
