"""What a run's process and its collectors send each other, besides calls by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agents.completion import SamplingParams
from agents.serving.sampling.guests import GuestReport, GuestSettings
from rl.rollout.vine import VineConfig
from rl.run.process.activity import Waiting
from rl.settings.run import RunConfig

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True, kw_only=True)
class CollectorSpec:
    """What a collector is opened with."""

    number: int
    """The collector's number, from 0."""
    size: int
    """Number of collectors of the run."""
    config_type: type[RunConfig]
    """The command's type of settings."""
    settings: Mapping[str, Any]
    """The command's settings, as :func:`rl.settings.parsing.files.as_values` gives them."""
    environment: Mapping[str, str]
    """Environment variables to set."""
    sandboxes: str
    """URLs of sandbox servers that take the place of ``env.sandbox``, or empty."""
    tokenizer: PreTrainedTokenizerBase
    end_token_ids: tuple[int, ...]
    """See :class:`rl.learner.seam.ModelFacts`."""
    context_window: int
    """The model's own context window, in tokens."""
    guest: GuestSettings
    """What the collector must know of the policy."""


@dataclass(frozen=True, slots=True)
class PlaySettings:
    """How episodes are played."""

    split: str
    sampling: SamplingParams
    vine: VineConfig | None
    """Settings of the Monte Carlo values of turns, or None if turns need no values."""


@dataclass(frozen=True, slots=True)
class Report:
    """What a collector reports regularly."""

    seconds: Mapping[str, float]
    """Seconds since the last report, by lane and state; see ``Activities.take``."""
    waits: Sequence[Waiting]
    """The activities that wait for longest."""
    num_restartable: int
    """Number of activities that can restart."""
    guest: GuestReport
    """For the policy."""
