"""OpenEnv's servers as environments, and ours on OpenEnv's server: both real, over sockets."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from parity import Seen, ours

import envs
from envs.adapters.openenv import OpenEnv, OpenEnvOptions
from envs.base.loop import loop_thread
from envs.play import aplay, gold_of, play

pytest.importorskip("openenv.core")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@contextmanager
def served(app):
    """The address of an application, served by uvicorn in a thread."""
    import uvicorn

    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="websockets-sansio"))
        arguments = {"sockets": [listening]}
        thread = threading.Thread(target=server.run, kwargs=arguments, daemon=True)
        thread.start()
        deadline = time.monotonic() + 60
        while not server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        assert server.started
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def mastermind():
    from envs.adapters.openenv_server import openenv_app

    with served(openenv_app("mastermind", max_sessions=256)) as url:
        yield url


class MastermindEnv(OpenEnv):
    """The server's mastermind; its gold policy is our own."""

    success_score = ""

    def gold_policy(self):
        return envs.make("mastermind").gold_policy()


def make(url, kind=MastermindEnv, **options):
    return kind(OpenEnvOptions(url=url, **options))


def test_through_the_server_it_is_the_same_environment(mastermind):
    env, ours = make(mastermind), envs.make("mastermind")
    for task in range(3):
        played = play(env, env.gold_policy(), task=task)
        same = play(ours, gold_of(ours), seed=env.tasks[task])
        assert played.first == same.first
        assert [(s.observation, s.reward) for s in played.steps] == [
            (s.observation, s.reward) for s in same.steps
        ]
        assert played.reward == 1.0
    env.close()


def their_episode(url, actions, read, **reset):
    """An episode by the loop of OpenEnv's own client."""
    from openenv.core import GenericEnvClient

    with GenericEnvClient(url).sync() as client:
        result = client.reset(**reset)
        seen = [Seen(read(result.observation))]
        for action in actions:
            if result.done:
                break
            result = client.step(action)
            cut = bool((result.observation.get("metadata") or {}).get("truncated"))
            ended = (result.done and not cut, result.done and cut)
            seen.append(Seen(read(result.observation), float(result.reward or 0), *ended))
        return seen


@pytest.mark.parametrize("moves", [["<guess> 122 </guess>"] * 30, ["no"] * 30])
def test_it_shows_earns_and_ends_as_by_openenvs_own_client(mastermind, moves):
    env, local = make(mastermind, max_turns=100), envs.make("mastermind")
    local.reset(seed=env.tasks[4])
    actions = [{"text": move} for move in moves]
    played = ours(env, moves, 4)
    theirs = their_episode(mastermind, actions, lambda seen: seen["text"], seed=env.tasks[4])
    assert played == theirs
    assert played[-1].truncated
    assert env.system_prompt == local.system_prompt
    env.close()


def test_the_contract_holds(mastermind):
    report = envs.check_env(make(mastermind), num_tasks=2)
    assert report.tasks == (0, 500_000)


def test_each_client_has_an_episode_of_its_own(mastermind):
    env = make(mastermind)
    policy = env.gold_policy

    env.reset(seed=1)  # A session of its own, which no copy may take.

    async def together():
        members = env.group(8)
        try:
            return await asyncio.gather(
                *(aplay(member, policy(), task=i // 4) for i, member in enumerate(members))
            )
        finally:
            for member in members:
                await member.aclose()

    played = loop_thread.run(together())
    assert played[:4] == [played[0]] * 4
    assert played[4:] == [played[4]] * 4
    assert played[0] != played[4]


def test_openenvs_own_client_reads_rewards_by_name(mastermind):
    from openenv.core import GenericEnvClient

    with GenericEnvClient(mastermind).sync() as client:
        first = client.reset(seed=5, task=9)
        assert "The code has 3 digits" in first.observation["text"]
        assert first.observation["metadata"]["system_prompt"].startswith("Find")
        step = client.step({"text": "<guess> 122 </guess>"})
        assert step.observation["metadata"]["task"] == 9
        assert set(step.observation["metadata"]["scores"]) >= {"solved", "information"}
        assert client.state()["step_count"] == 1


def test_services_are_opened_once_for_all_sessions():
    from envs.adapters.openenv_server import openenv_app

    opened = []

    class Library(envs.TextEnv):
        """Asks a service for a word."""

        def __init__(self, options, services=None):
            super().__init__(options, range(5), services)

        @classmethod
        def open_services(cls, options):
            from contextlib import asynccontextmanager

            @asynccontextmanager
            async def opening():
                opened.append(1)
                yield {"word": "yes"}

            return opening()

        def begin(self, task):
            self.state = task
            return "?"

        async def turn(self, action):
            return envs.finish({"right": float(action == await self.service("word"))})

    envs.register("library-of-openenv-v0", Library)
    with served(openenv_app("library-of-openenv")) as url:
        for env in make(url, OpenEnv).group(3):
            assert play(env, lambda _: "yes", task=0).reward == 1.0
            env.close()
    assert opened == [1]


def test_a_server_that_is_not_there_is_a_failure():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = make(f"http://127.0.0.1:{port}", step_timeout_s=10)
    with pytest.raises(
        envs.EnvFailure, match=f"http://127.0.0.1:{port}: ConnectionError"
    ) as failure:
        env.reset(seed=0)
    assert failure.value.retryable


def echo_app():
    """A foreign server that answers also before a reset."""
    from openenv.core import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State

    class EchoAction(Action):
        message: str

    class Echoed(Observation):
        echoed: str
        length: int

    class Echo(Environment):
        SUPPORTS_CONCURRENT_SESSIONS = True
        said = ()

        def reset(self, seed=None, episode_id=None, greeting="Hello"):
            self.said = ()
            return Echoed(echoed=f"{greeting} {seed}", length=0)

        def step(self, action, timeout_s=None):
            self.said += (action.message,)
            over = len(self.said) == 3
            text = " ".join(self.said)
            return Echoed(echoed=text, length=len(text), reward=over or None, done=over)

        @property
        def state(self):
            return State(step_count=len(self.said))

    return create_app(Echo, EchoAction, Echoed, max_concurrent_envs=4)


class EchoEnv(OpenEnv):
    def ask(self, task):
        return {"seed": task, "greeting": "Good day"}

    def act(self, text):
        return {"message": text}

    def observe(self, observation):
        return f"{observation['echoed']} ({observation['length']})"


def test_another_server_by_three_functions_and_a_lost_session_is_no_new_episode():
    with served(echo_app()) as url:
        env = make(url, EchoEnv)
        assert env.reset(options={"task": 2})[0] == "Good day 6 (0)"
        assert env.step("a").observation == "a (1)"
        assert env.step("b").reward == 0.0
        last = env.step("c")
        assert (last.observation, last.reward, last.terminated) == ("a b c (5)", 1.0, True)
        actions = [{"message": text} for text in "abc"]
        theirs = their_episode(url, actions, env.observe, seed=6, greeting="Good day")
        assert ours(env, "abc", 2) == theirs
        assert env.system_prompt is None
        env.reset(seed=0)
        env.step("a")
        loop_thread.run(env._client._ws.close())
        with pytest.raises(envs.EnvFailure, match="the server lost the session"):
            env.step("b")
        with pytest.raises(envs.NotForkable):
            env.reset(seed=0)
            env.fork()
        env.close()


class Slow(envs.TextEnv):
    """Hangs, breaks, or takes an action."""

    blocking = True

    def __init__(self, options, services=None):
        super().__init__(options, range(5), services)

    def begin(self, task):
        self.state = 0
        return "?"

    def turn(self, action):
        if action == "hang":
            time.sleep(3)
        if action == "break":
            raise envs.EnvFailure("no sandbox", retryable=True)
        return envs.go_on("and?")


def test_late_answers_errors_lost_sessions_and_a_full_server_are_failures():
    from envs.adapters.openenv_server import openenv_app

    envs.register("slow-for-openenv-v0", Slow)
    app = openenv_app("slow-for-openenv", max_turns=9, max_sessions=1)
    with served(app) as url:
        env = make(url, OpenEnv, step_timeout_s=1.0)
        env.reset(seed=0)
        started = time.monotonic()
        with pytest.raises(envs.EnvFailure, match="TimeoutError"):
            env.step("hang")
        assert time.monotonic() - started < 2.5
        env.close()
        time.sleep(3)  # The server notices that the session is over.
        env = make(url, OpenEnv, step_timeout_s=5.0)
        env.reset(seed=0)
        with pytest.raises(envs.EnvFailure, match="no sandbox"):
            env.step("break")
        env.reset(seed=0)
        second = make(url, OpenEnv, step_timeout_s=5.0)
        with pytest.raises(envs.EnvFailure, match="CAPACITY_REACHED"):
            second.reset(seed=0)
        env.close()
        second.close()
