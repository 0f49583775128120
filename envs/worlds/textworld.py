"""``textworld-v0``: text adventures that TextWorld generates (arXiv:1806.11532).

A game is generated from the task's seed, compiled for the Z-machine, and kept in the cache, since
this takes seconds. The agent reads what the game prints, and writes one command a turn.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from envs.adapters.foreign import ForeignOptions, library, seeds
from envs.env import TextEnv
from envs.episode import Action, Reply, StopReason, cut, finish, go_on
from envs.options import Card

_GENERATES = threading.Lock()
"""The library generates games with global random generators."""
_LONGEST = 197
_PROMPT_LINE = re.compile(r"\n>[^\n]*\Z")
_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "tw-treasure_hunter": {"level": 1},
    "tw-coin_collector": {"level": 1},
    "tw-simple": {"rewards": "dense", "goal": "brief", "test": False},
    "tw-cooking": dict.fromkeys(("recipe", "take", "go"), 1)
    | dict.fromkeys(("open", "cook", "cut", "drop"), False)
    | {"split": "train"},
}
"""Settings of each challenge where ``config`` names none."""


@dataclass(frozen=True, kw_only=True)
class TextWorldOptions(ForeignOptions):
    """Options of the games."""

    max_turns: int = 50
    """Maximum number of commands per episode."""
    challenge: str = "tw-treasure_hunter"
    """Kind of game: tw-treasure_hunter, tw-coin_collector, tw-simple or tw-cooking."""
    config: str = "{}"
    """Settings of the challenge as JSON, such as '{"level": 5}'; others have their defaults."""
    show_commands: bool = False
    """Whether each observation lists the commands that have an effect."""
    instructions: bool = True
    """Whether the system message states the rules."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            known = isinstance(json.loads(self.config), dict)
        except json.JSONDecodeError:
            known = False
        if not known:
            raise ValueError(
                f'config ({self.config}) must be a JSON object, such as {{"level": 5}}'
            )


class Game:
    """A running game. A copy is a new game in which the same commands were entered.

    Args:
        path: a compiled game.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.commands: list[str] = []
        textworld = library("textworld", "textworld")
        wanted = textworld.EnvInfos(
            feedback=True, objective=True, score=True, max_score=True, won=True, lost=True,
            admissible_commands=True, policy_commands=True,
        )  # fmt: skip
        self._env = textworld.start(path, wanted)
        self._env.seed(1)
        self.last: Any = self._env.reset()
        """What the library said last."""

    def enter(self, command: str) -> None:
        """Enter a command; ``last`` is then the library's reply."""
        self.commands.append(command)
        self.last = self._env.step(command)[0]

    def close(self) -> None:
        """End the interpreter."""
        self._env.close()

    def __getstate__(self) -> tuple[str, list[str]]:
        return self.path, self.commands

    def __setstate__(self, state: tuple[str, list[str]]) -> None:
        path, commands = state
        self.__init__(path)  # type: ignore[misc]
        for command in commands:
            self.enter(command)


class TextWorldEnv(TextEnv[int, Game]):
    """A text adventure of TextWorld; the reward is the share of the points that the game gives."""

    Options = TextWorldOptions
    card = Card(
        agent="plays a generated text adventure",
        reward="the share of the game's points",
        needs="`pip install 'turnwise[textworld]'`",
    )
    success_score = "won"
    blocking = True

    def __init__(
        self, options: TextWorldOptions, services: Mapping[str, Any] | None = None
    ) -> None:
        known = library("textworld.challenges", "textworld").CHALLENGES
        if options.challenge not in known:
            raise ValueError(f"challenge ({options.challenge}) must be one of {', '.join(known)}")
        super().__init__(options, seeds(options), services)
        # For the gold policy; copies of this environment share it.
        self._games: dict[str, str] = {}
        # The interpreter knows published games only; the library reads scores by itself.
        warnings.filterwarnings("ignore", message=".* is not fully supported")
        if options.instructions:
            self.system_prompt = (
                "You play a text adventure. Write one command a turn, such as: look, go north, "
                "open chest, take key from chest, unlock door with key, inventory."
            )

    def begin(self, task: int) -> str:
        """Generate the game, or take it from the cache, and start it."""
        chosen = cast(TextWorldOptions, self.options)
        self.state = Game(compiled(chosen.challenge, chosen.config, task))
        text = str(self.state.last.feedback)
        # What precedes the objective is the library's title.
        first = self._shown(text[max(0, text.find(self.state.last.objective)) :])
        self._games[first] = self.state.path
        return first

    def turn(self, action: Action) -> Reply:
        """Enter a command."""
        game, before = self.state, self.state.last.score
        # The game reads one line of less than 198 bytes.
        command = " ".join(action.content.split()).encode()[:_LONGEST].decode(errors="ignore")
        game.enter(command.rstrip("."))
        last = game.last
        rewards = {"points": (last.score - before) / last.max_score}
        scores = {"won": float(last.won)}
        if last.won or last.lost:
            return finish(rewards, self._shown(last.feedback), scores)
        if self.turns_left == 1:
            return cut(StopReason.TURN_LIMIT, rewards, self._shown(last.feedback), scores)
        return go_on(self._shown(last.feedback), rewards)

    def gold_policy(self) -> Callable[[str], str]:
        """The library's own solution of the game, which it knows by its first observation."""
        left = list[str]()
        started = False

        def act(observation: str) -> str:
            nonlocal started
            if not started:
                game = Game(self._games[observation])
                left.extend(game.last.policy_commands)
                game.close()
                started = True
            return left.pop(0) if left else "look"

        return act

    def _shown(self, feedback: str) -> str:
        """What the game printed, without its prompt and without runs of empty lines."""
        text = re.sub(r"\n\s*\n", "\n", _PROMPT_LINE.sub("", feedback)).strip()
        if cast(TextWorldOptions, self.options).show_commands:
            commands = sorted(self.state.last.admissible_commands)
            text += f"\nCommands: {', '.join(commands)}."
        return text


def compiled(challenge: str, config: str, seed: int) -> str:
    """Path of a compiled game in the cache, generated first if it is not there.

    Raises:
        ValueError: the challenge does not take these settings.
    """
    textworld = library("textworld", "textworld")
    name = json.dumps([challenge, json.loads(config), seed, textworld.__version__], sort_keys=True)
    base = os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache"))
    folder = os.environ.get("TURNWISE_CACHE", str(Path(base) / "turnwise"))
    path = (
        Path(folder)
        / "textworld"
        / f"{hashlib.blake2b(name.encode(), digest_size=12).hexdigest()}.z8"
    )
    with _GENERATES:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _compile(challenge, config, seed, path)
    return str(path)


def _compile(challenge: str, config: str, seed: int, path: Path) -> None:
    """Generate a game in a temporary folder, and move its two files into place."""
    textworld = library("textworld", "textworld")
    make = library("textworld.challenges", "textworld").CHALLENGES[challenge][1]
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        options = textworld.GameOptions()
        options.seeds, options.path = seed % 2**31, str(Path(folder, path.name))
        try:
            settings = {**_DEFAULTS.get(challenge, {}), "recipe_seed": seed, **json.loads(config)}
            game = make(settings, options)
        except (KeyError, TypeError, AssertionError) as error:
            raise ValueError(f"config ({config}): {challenge} says {error!r}") from error
        made = Path(library("textworld.generator", "textworld").compile_game(game, options))
        # The compiled game last: it shows that both are there.
        for suffix in (".json", ".z8"):
            made.with_suffix(suffix).replace(path.with_suffix(suffix))
