"""The games of the benchmark: tasks, and an agent that plays them over an OpenAI-compatible URL.

``boxes`` follows a chain of boxes to a colour, in two to four turns: the agent must copy what it
read. ``guess`` finds a number from 0 to 14 in four guesses: the agent must plan. Both are solvable
always, by an agent without errors. Every message is a few tokens of plain text; no tool calls and
no chat template's features are needed.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp

COLOURS = ("red", "green", "blue", "black", "white")
MAX_TURNS = 4
MAX_TOKENS = 12
"""Maximum number of sampled tokens of an answer."""
TEMPERATURE = 1.0
LEDGER = "MULTI_TURN_LEDGER"
"""Environment variable with the file to which :func:`play` appends a line for each episode."""
_REQUEST_S = 600.0


@dataclass(frozen=True)
class Turn:
    """What the game answers to an agent's message. ``reward`` is None while the game goes on."""

    text: str
    reward: float | None = None


@dataclass(frozen=True)
class Game:
    """The functions of one game."""

    make_task: Callable[[random.Random], dict]
    question: Callable[[dict], str]
    answer: Callable[[dict, str], Turn]
    """The game's answer to the agent's message. It depends on nothing else."""
    expert: Callable[[dict, list[str], random.Random, float], str]
    """The next message of an agent that errs with a probability, after the game's messages."""


def _make_boxes(rng: random.Random) -> dict:
    numbers = [str(n) for n in rng.sample(range(10, 100), rng.randint(1, 3))]
    colour = rng.choice(COLOURS)
    boxes = dict(zip(numbers, [*numbers[1:], colour], strict=True))
    return {"start": numbers[0], "boxes": boxes, "colour": colour}


def _answer_boxes(task: dict, message: str) -> Turn:
    words = message.split()
    if len(words) == 2 and words[0] == "look":
        return Turn(task["boxes"].get(words[1], "empty"))
    return Turn("", float(words == ["answer", task["colour"]]))


def _open_boxes(task: dict, seen: list[str], rng: random.Random, errs: float) -> str:
    last = seen[-1] if seen else task["start"]
    if last.isdigit():
        return f"look {rng.randint(10, 99) if rng.random() < errs else last}"
    return f"answer {rng.choice(COLOURS) if rng.random() < errs or last == 'empty' else last}"


def _make_guess(rng: random.Random) -> dict:
    return {"number": rng.randrange(15)}


def _answer_guess(task: dict, message: str) -> Turn:
    if not message.strip().isdigit():
        return Turn("", 0.0)
    guess = int(message)
    if guess == task["number"]:
        return Turn("", 1.0)
    return Turn("higher" if guess < task["number"] else "lower")


def _halve(task: dict, seen: list[str], rng: random.Random, errs: float) -> str:
    low, high = 0, 14
    for said in seen:
        guess, _, direction = said.partition(" ")
        low, high = (
            (max(low, int(guess) + 1), high)
            if direction == "higher"
            else (low, min(high, int(guess) - 1))
        )
    return str(rng.randrange(15) if rng.random() < errs else (low + high) // 2)


GAMES = {
    "boxes": Game(
        _make_boxes, lambda task: f"Start at box {task['start']}.", _answer_boxes, _open_boxes
    ),
    "guess": Game(_make_guess, lambda task: "Guess from 0 to 14.", _answer_guess, _halve),
}
SPLITS = {"train": 4000, "test": 256}


def make_tasks(game: str, split: str) -> list[dict]:
    """The tasks of a split. A test task may equal a training task in ``guess``, which has 15."""
    return [
        {"game": game, **GAMES[game].make_task(random.Random(f"{game} {split} {i}"))}
        for i in range(SPLITS[split])
    ]


def demonstrate(task: dict, seed: int) -> list[dict]:
    """The messages of an episode by an agent that errs in a third of its turns."""
    return _episode(task, random.Random(f"demonstration {seed}"), 1 / 3)[0]


def _episode(task: dict, rng: random.Random, errs: float) -> tuple[list[dict], float]:
    """The messages and the reward of an episode that the expert plays with errors."""
    game = GAMES[task["game"]]
    messages = [{"role": "user", "content": game.question(task)}]
    seen: list[str] = []
    for _ in range(MAX_TURNS):
        said = game.expert(task, seen, rng, errs)
        messages.append({"role": "assistant", "content": said})
        turn = game.answer(task, said)
        if turn.reward is not None:
            return messages, turn.reward
        messages.append({"role": "user", "content": turn.text})
        seen.append(turn.text if task["game"] == "boxes" else f"{said} {turn.text}")
    return messages[:-1], 0.0


def expert_success(game: str, errs: float) -> float:
    """The share of test tasks that the expert solves."""
    tasks = make_tasks(game, "test")
    return sum(_episode(t, random.Random(i), errs)[1] for i, t in enumerate(tasks)) / len(tasks)


async def play(task: dict, base_url: str) -> float:
    """Play an episode at an OpenAI-compatible URL, and return the reward."""
    game, used = GAMES[task["game"]], {"prompt_tokens": 0, "completion_tokens": 0}
    messages = [{"role": "user", "content": game.question(task)}]
    reward = 0.0
    timeout = aiohttp.ClientTimeout(total=_REQUEST_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        for _ in range(MAX_TURNS):
            body = {
                "model": "policy",
                "messages": messages,
                "max_tokens": MAX_TOKENS,
                "temperature": TEMPERATURE,
            }
            async with session.post(f"{base_url}/chat/completions", json=body) as response:
                response.raise_for_status()
                answer = await response.json()
            for name in used:
                used[name] += answer["usage"][name]
            said = answer["choices"][0]["message"]["content"] or ""
            messages.append({"role": "assistant", "content": said})
            turn = game.answer(task, said)
            if turn.reward is not None:
                reward = turn.reward
                break
            messages.append({"role": "user", "content": turn.text})
    _record({"reward": reward, **used})
    return reward


def _record(episode: dict) -> None:
    """Append a line to the ledger, if there is one. A short line is written whole."""
    path = os.environ.get(LEDGER)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"at": time.time(), **episode}) + "\n")
