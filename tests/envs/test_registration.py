"""envs.make and gymnasium.make: versions, plug-ins, options, near misses."""

from __future__ import annotations

import importlib
import subprocess
import sys
import textwrap
from pathlib import Path

import gymnasium
import pytest

import envs
from envs import registration
from envs.search.env import SearchQAEnv
from tools.registry import PluginImportError, Registry, UnknownNameError

PLUGIN = """
    from envs import EnvOptions, TextEnv, finish

    class CoinEnv(TextEnv):
        def __init__(self, options, services=None):
            super().__init__(options, range(4), services)

        def begin(self, task):
            self.state = task
            return "heads or tails?"

        def turn(self, action):
            return finish({"right": float(action == "heads")})

    NOT_AN_ENV = 5
"""


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    """Two installed distributions: one works, one fails to import."""
    monkeypatch.syspath_prepend(str(tmp_path))
    sources = {"coin-games": PLUGIN, "broken-games": "import no_such_module_anywhere"}
    entries = {
        "coin-games": "coin-v0 = coin_games:CoinEnv\ncoin-v2 = coin_games:CoinEnv\n"
        "coin-v10 = coin_games:CoinEnv\nfive-v0 = coin_games:NOT_AN_ENV",
        "broken-games": "broken-v0 = broken_games:Env",
    }
    for dist, source in sources.items():
        info = tmp_path / f"{dist}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[turnwise.envs]\n{entries[dist]}")
        module = dist.replace("-", "_")
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(source))
        monkeypatch.delitem(sys.modules, module, raising=False)
    importlib.invalidate_caches()
    # A fresh registry, since the process's own one has read its entry points already.
    monkeypatch.setattr(registration, "_registry", Registry("environment", "turnwise.envs"))
    before = dict(gymnasium.registry)
    registration.register_plugins_with_gymnasium()
    yield
    for name in set(gymnasium.registry) - set(before):
        del gymnasium.registry[name]


@pytest.fixture
def fresh(monkeypatch):
    """A registry of its own, and Gymnasium's left as it was."""
    monkeypatch.setattr(registration, "_registry", Registry("environment", "turnwise.no-envs"))
    before = dict(gymnasium.registry)
    yield
    for name in set(gymnasium.registry) - set(before):
        del gymnasium.registry[name]


def test_make_by_full_id_and_bare_name():
    for name in ("search-qa-v0", "search-qa", "turnwise/search-qa-v0", "turnwise/search-qa"):
        env = envs.make(name, max_turns=2, hops="1")
        assert isinstance(env, SearchQAEnv)
        assert env.env_id == "search-qa-v0"
        assert (env.options.max_turns, env.options.hops) == (2, "1")


def test_near_misses_are_reported():
    with pytest.raises(UnknownNameError, match=r"'serch-qa'\. Did you mean 'search-qa-v0'\?"):
        envs.make("serch-qa")
    with pytest.raises(UnknownNameError, match=r"Known: .*search-qa-v0"):
        envs.make("search-qa-v9")
    with pytest.raises(TypeError, match=r"no option 'max_turn'. Did you mean 'max_turns'\?"):
        envs.make("search-qa", max_turn=3)
    with pytest.raises(ValueError, match=r"max_turns \(0\) must be >= 1"):
        envs.make("search-qa", max_turns=0)


@pytest.mark.usefixtures("plugins")
def test_plugins_are_found_and_the_newest_version_wins():
    assert envs.ids() == ["broken-v0", "coin-v0", "coin-v10", "coin-v2", "five-v0"]
    assert "coin_games" not in sys.modules
    assert envs.resolve("coin") == "coin-v10", "10 is newer than 2"
    env = envs.make("coin-v2")
    assert env.env_id == "coin-v2"
    env.reset(seed=0)
    assert env.step("heads").reward == 1.0


@pytest.mark.usefixtures("plugins")
def test_a_broken_plugin_is_named_when_it_is_asked_for():
    with pytest.raises(PluginImportError, match=r"'broken-v0', advertised by broken-games"):
        envs.make("broken")
    with pytest.raises(PluginImportError, match="'five-v0' is 5, which is no subclass of TextEnv"):
        envs.make("five")
    assert envs.make("coin").env_id == "coin-v10"


@pytest.mark.usefixtures("plugins")
def test_gymnasium_finds_plugins_too():
    env = gymnasium.make("turnwise/coin-v10")
    env.reset(seed=0)
    assert env.step("tails")[1] == 0.0


class Careless(envs.TextEnv):
    """Forgets super().__init__."""

    def __init__(self, options, services=None):
        self.mine = options


class Reserved(envs.TextEnv):
    """Takes no services."""

    def __init__(self, options):
        super().__init__(options, range(3))


class Inherited(envs.TextEnv):
    """Has no tasks."""


class Faulty(envs.TextEnv):
    """Is built as it should be, and fails by itself."""

    def __init__(self, options, services=None):
        super().__init__(options, range(len(3)), services)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        (Careless, r"^Careless.__init__ must call super\(\).__init__\(options, tasks, services\)$"),
        (Reserved, r"^Reserved.__init__ must be \(self, options, services=None\), and call super"),
        (
            Inherited,
            r"^Inherited.__init__ must be \(self, options, services=None\), and call super",
        ),
        (Faulty, r"^object of type 'int' has no len\(\)$"),
    ],
)
def test_an_environment_that_is_built_otherwise_gets_the_right_call(fresh, kind, says):
    envs.register("odd-v0", kind)
    with pytest.raises(TypeError, match=says):
        envs.make("odd")


@pytest.mark.parametrize(
    "bad", ["Coin-v0", "coin", "coin-v", "-v0", "coin v0", "coin_v0", "a/b/c-v0"]
)
def test_ids_have_a_form(fresh, bad):
    with pytest.raises(ValueError, match="must be lower case and end in a version"):
        envs.register(bad, SearchQAEnv)


def test_register_here(fresh):
    envs.register("mine/search-v3", SearchQAEnv)
    assert isinstance(gymnasium.make("mine/search-v3").unwrapped, SearchQAEnv)
    envs.register("mine/search-v4", "envs.search.env:SearchQAEnv")
    assert envs.env_type("mine/search") is SearchQAEnv
    assert envs.make("mine/search-v3").env_id == "mine/search-v3"
    with pytest.raises(ValueError, match="'mine/search-v3' is registered already"):
        envs.register("mine/search-v3", envs.TextEnv)


def test_gymnasium_make_with_options():
    env = gymnasium.make("turnwise/search-qa-v0", hops="2", max_turns=5)
    assert isinstance(env.unwrapped, SearchQAEnv)
    observation, info = env.reset(seed=4)
    assert observation.startswith("The person is ") and set(info) == {"task"}
    gold = env.unwrapped.gold_policy()
    for _ in range(3):
        observation, reward, terminated, truncated, _ = env.step(gold(observation))
    assert (reward, terminated, truncated) == (1.0, True, False)
    env.close()


def test_gymnasium_imports_the_module_that_an_id_names():
    code = (
        "import gymnasium; env = gymnasium.make('envs:turnwise/search-qa-v0');"
        "print(env.reset(seed=0)[0])"
    )
    root = Path(envs.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("The person is ")


def test_importing_envs_and_tools_loads_no_heavy_module():
    code = (
        "import sys, envs, tools;"
        "heavy = {'torch', 'transformers', 'vllm', 'ray', 'pydantic', 'rank_bm25'};"
        "print(sorted(heavy & set(sys.modules)))"
    )
    root = Path(envs.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"
