"""Conversations to imitate: an environment's imperfect author, or a file of messages."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import envs
from agents.completion import Completion, FinishReason
from agents.renderer import Renderer
from agents.segment import Segment
from envs.budget import without_budget
from envs.env import EnvOptions


class NoDemonstrations(ValueError):
    """Raised when an environment has no author to imitate."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What an author read, and what it said."""

    observation: str
    action: str


@dataclass(frozen=True, slots=True)
class Conversation:
    """A whole episode as text."""

    exchanges: tuple[Exchange, ...]
    system: str | None = None
    stop: tuple[str, ...] = ()
    """An action that ends in one of these was halted there, so no end token follows it."""
    continues: bool = False
    """Whether observations after the first continue the author's own message."""

    def texts(self) -> Iterator[str]:
        """Every text of it, for training a tokenizer."""
        if self.system:
            yield self.system
        for exchange in self.exchanges:
            yield exchange.observation
            yield exchange.action

    def to_segment(self, renderer: Renderer) -> Segment:
        """Its tokens: an author's words have loss_mask 1, all that it read has 0."""
        segment, ended = Segment(), False
        for turn, exchange in enumerate(self.exchanges):
            if turn == 0:
                messages = [{"role": "system", "content": self.system}] if self.system else []
                messages.append({"role": "user", "content": exchange.observation})
                segment.append_context(renderer.start(messages), turn)
            elif self.continues:
                segment.append_context(renderer.splice(exchange.observation), turn)
            else:
                tokens = renderer.extend(exchange.observation, ended=ended)
                segment.append_context(tokens, turn)
            ended = not exchange.action.endswith(self.stop) if self.stop else True
            tokens = renderer.splice(exchange.action)
            if ended:
                tokens = [*tokens, renderer.end_token_ids[0]]
            segment.append_completion(_said(tokens), turn)
        return segment


def _said(tokens: Sequence[int]) -> Completion:
    """An author's tokens in the form of a completion; nobody sampled them at a probability."""
    count = len(tokens)
    return Completion(tuple(tokens), (0.0,) * count, (0,) * count, FinishReason.STOP_TOKEN)


async def demonstrate(
    env_id: str,
    options: EnvOptions,
    services: Mapping[str, Any],
    tasks: Sequence[int],
    seed: int,
    concurrency: int = 32,
) -> list[Conversation]:
    """Let the environment's imperfect author play these tasks, one episode each.

    An episode is a conversation, or one for each of its roles.

    Args:
        env_id: the environment's full id.
        options: its options.
        services: what its episodes share.
        tasks: indices into the options' split.
        seed: of the author's errors.
        concurrency: episodes at once.

    Raises:
        NoDemonstrations: the environment has no such author.
    """
    places = asyncio.Semaphore(concurrency)

    async def one(position: int, task: int) -> list[Conversation]:
        async with places:
            rng = np.random.default_rng([seed, position])
            return await _episode(env_id, options, services, task, rng)

    played = await asyncio.gather(*(one(i, task) for i, task in enumerate(tasks)))
    return [conversation for conversations in played for conversation in conversations]


async def _episode(
    env_id: str,
    options: EnvOptions,
    services: Mapping[str, Any],
    task: int,
    rng: np.random.Generator,
) -> list[Conversation]:
    env = envs.make_from(env_id, options, services)
    observation, _ = await env.areset(seed=int(rng.integers(2**31)), options={"task": task})
    try:
        author = env.demonstrator(rng)
    except NotImplementedError as error:
        raise NoDemonstrations(
            f"{env_id} has no demonstrator to imitate: write {type(env).__name__}.demonstrator, or "
            f"do without (model=... a Hugging Face model, data=... a file of messages)"
        ) from error
    spoken: dict[str, list[Exchange]] = {}
    rules: dict[str, str | None] = {}
    # The last action's outcome is read by nobody, so it is not asked for.
    for turn in range(options.max_turns):
        action = author(without_budget(observation))
        spoken.setdefault(env.role, []).append(Exchange(observation, action))
        rules.setdefault(env.role, env.system_prompt)
        if turn + 1 < options.max_turns:
            result = await env.astep(action)
            if result.terminated or result.truncated:
                break
            observation = result.observation
    await env.aclose()
    return [
        Conversation(tuple(exchanges), rules[role], env.stop, env.continues)
        for role, exchanges in spoken.items()
    ]


def read_conversations(path: str, key: str = "data") -> list[Conversation]:
    """Conversations from JSON lines of ``{"messages": [{"role": ..., "content": ...}, ...]}``.

    Args:
        path: the file.
        key: the setting that names it, for messages.

    Raises:
        ValueError: a line is not such a conversation; names the file and the line.
    """
    file = Path(path).expanduser()
    if not file.is_file():
        other = '"demonstrations" or ' if key == "data" else ""
        raise ValueError(f"{key} ({path}) must be {other}a file of JSON lines")
    conversations = []
    # Lines end in a line feed: str.splitlines would also cut at the separators inside texts.
    for number, line in enumerate(file.read_bytes().splitlines(), start=1):
        try:
            conversations.append(conversation_of(json.loads(line)["messages"]))
        except (LookupError, TypeError, ValueError) as error:
            raise ValueError(
                f'{path}, line {number}: expected {{"messages": [...]}} with user and assistant '
                f"messages in turn, after at most one system message ({error})"
            ) from error
    if not conversations:
        raise ValueError(f"{key} ({path}) holds no conversation: give it a line for each")
    return conversations


def conversation_of(messages: Sequence[Mapping[str, str]]) -> Conversation:
    """The conversation that chat messages are.

    Raises:
        ValueError: they are not user and assistant in turn, after at most one system message.
        TypeError: a content is no text.
        LookupError: a message lacks its role or its content.
    """
    system = messages[0]["content"] if messages[0]["role"] == "system" else None
    rest = messages[1:] if system is not None else messages
    roles = [message["role"] for message in rest]
    if not rest or len(rest) % 2 or roles != ["user", "assistant"] * (len(rest) // 2):
        raise ValueError(f"the roles are {roles}")
    texts = [message["content"] for message in rest]
    if not all(isinstance(text, str) for text in (*texts, system or "")):
        raise TypeError("a content is not a text")
    pairs = zip(texts[::2], texts[1::2], strict=True)
    return Conversation(tuple(Exchange(user, said) for user, said in pairs), system)
