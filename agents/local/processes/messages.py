"""Messages between a policy and its sampling processes, and how they are sent."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

from agents.completion import Completion, SamplingParams
from agents.local.processes.shared_weights import Layout

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True)
class Start:
    """The first message to a process."""

    model: PreTrainedModel
    attention: object
    """The model's attention function. Receiving it imports the module that registers it."""
    tokenizer: PreTrainedTokenizerBase
    layout: Layout
    max_slots: int
    context_window: int
    cache_bytes: int | None
    seed: int
    completion_s: float
    num_threads: int


@dataclass(frozen=True, slots=True)
class Generate:
    """Sample a completion."""

    number: int
    prompt_ids: array[int]
    sampling: SamplingParams
    session: str | None


@dataclass(frozen=True, slots=True)
class Cancel:
    """The caller of a :class:`Generate` no longer waits."""

    number: int


@dataclass(frozen=True, slots=True)
class End:
    """An episode is over."""

    session: str


@dataclass(frozen=True, slots=True)
class Load:
    """Load the weights that are in the shared memory now."""

    number: int
    version: int


@dataclass(frozen=True, slots=True)
class Done:
    """The answer to a :class:`Generate` or a :class:`Load`."""

    number: int
    completion: Completion | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The answer to a :class:`Generate` or a :class:`Load` that raised an exception."""

    number: int
    error: str
    is_value_error: bool = False
    """Whether the request was wrong. Otherwise the policy failed."""
    retryable: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """What the process has done so far; sent several times a second while it has work."""

    steps: int
    queued_s: Mapping[str, float]
    """For each open session, the seconds that its requests waited for a row."""


Request = Generate | Cancel | End | Load
Answer = Done | Failed | Progress


def send(connection: Connection, message: Start | Request | Answer) -> None:
    """Send a message. Tensors are sent by value.

    Raises:
        OSError: the connection is closed.
    """
    # Not Connection.send, by which torch would send shared memory that only children can open.
    connection.send_bytes(pickle.dumps(message, pickle.HIGHEST_PROTOCOL))


def receive(connection: Connection) -> Any:
    """Wait for the next message.

    Raises:
        EOFError: the connection is closed.
        OSError: the connection broke.
    """
    return pickle.loads(connection.recv_bytes())
