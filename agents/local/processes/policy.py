"""The policy that samples from one model in several processes."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import os
from array import array
from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from transformers import AttentionInterface, PreTrainedModel, PreTrainedTokenizerBase

from agents.completion import Completion, SamplingParams
from agents.local.policy import Limits, LocalPolicy
from agents.local.processes import shared_weights
from agents.local.processes.messages import Start
from agents.local.processes.process import SamplingProcess
from agents.local.processes.shared_weights import Layout

_LOAD_S = 300.0
"""Deadline of loading weights, in seconds."""


class MultiProcessPolicy:
    """Samples with :class:`LocalPolicy` here and in further processes; see :mod:`agents.policy`.

    Python code runs on one core of a process. With a small model, this code takes half of a step,
    so that a second thread gains little and a second process nearly doubles the speed. Episodes
    that start with the same prompt are sampled by the same process, which computes the prompt once,
    unless it would have much more work than another.
    Rows and memory for keys and values are divided evenly. Each further process has its own copy of
    the weights, and one more copy is in memory that all processes share.

    Create it inside of an event loop.

    Args:
        model: the model, on a CPU.
        tokenizer: its tokenizer.
        processes: number of processes, at least 2, this one included.
        max_slots: maximum number of requests that are computed at the same time.
        seed: seed of requests that have no seed themselves.
        limits: memory, threads and deadlines; ``limits.num_threads`` cores for all processes.
        shares_weights: whether a learner trains this model in place.

    Raises:
        ValueError: the model is not on a CPU, or there are fewer than 2 processes.
    """

    process_class = SamplingProcess

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        processes: int,
        max_slots: int,
        seed: int = 0,
        limits: Limits,
        shares_weights: bool = True,
    ) -> None:
        if processes < 2:
            raise ValueError(f"processes ({processes}) must be at least 2")
        if model.device.type != "cpu":
            raise ValueError(f"the model is on {model.device}, several processes need it on a CPU")
        slots = -(-max_slots // processes)
        cores = max(1, limits.num_threads // processes)
        cache = None if limits.cache_bytes is None else limits.cache_bytes // processes
        limits = dataclasses.replace(limits, cache_bytes=cache, cores=cores)
        # Copied before the policy stores the model's weights in another way.
        plain = copy.deepcopy(model)
        self._model = model
        self._here = LocalPolicy(
            *(model, tokenizer),
            max_slots=slots,
            seed=seed,
            limits=limits,
            shares_weights=shares_weights,
        )
        self.shares_weights = shares_weights
        attention = AttentionInterface().get(plain.config._attn_implementation)
        start = Start(
            *(plain, attention, tokenizer, Layout.of(plain.state_dict())),
            max_slots=slots,
            context_window=self._here.context_window,
            cache_bytes=cache,
            seed=seed + 1,
            completion_s=limits.completion_s,
            num_threads=cores,
        )
        memory = shared_weights.create(start.layout)
        try:
            self._shared = shared_weights.tensors(memory, start.layout)
            self._others = [self.process_class(start, memory) for _ in range(processes - 1)]
        finally:
            os.close(memory)
        self._lead = max(1, slots // 2)
        """Number of open sessions by which the process of an equal prompt may be ahead."""
        self._open: Counter[int] = Counter()
        """Number of open sessions of each process. This process has the number -1."""
        self._places: dict[str, tuple[int, bytes]] = {}
        """For each open session, its process and its first prompt."""
        self._prompts: dict[bytes, Counter[int]] = {}
        """For each first prompt, the number of open sessions in each process."""

    @property
    def version(self) -> int:
        """The version of the weights from which the next token is sampled."""
        return self._here.version

    def begin(self, sessions: Sequence[str]) -> None:
        """Announce episodes, which changes nothing here."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, session: str | None = None
    ) -> Completion:
        """Sample one completion of ``prompt_ids``. Cancelling the call stops the generation.

        Raises:
            PolicyFailure: a process ended, the weights are broken, or a deadline passed.
            ValueError: as :meth:`LocalPolicy.generate`.
        """
        return await self._sampler(self._place(prompt_ids, session)).generate(
            prompt_ids, sampling, session
        )

    def queued_s(self, session: str) -> float:
        """Seconds that the session's requests waited for a row, so far."""
        place = self._places.get(session)
        return 0.0 if place is None else self._sampler(place[0]).queued_s(session)

    def end(self, session: str) -> None:
        """Release the row of an episode that is over."""
        place = self._places.pop(session, None)
        if place is None:
            return
        number, prompt = place
        self._open[number] -= 1
        self._prompts[prompt][number] -= 1
        if not self._prompts[prompt].total():
            del self._prompts[prompt]
        self._sampler(number).end(session)

    async def load_weights(self, weights: Mapping[str, torch.Tensor] | None, version: int) -> None:
        """Load weights into every process; see :meth:`LocalPolicy.load_weights`."""
        await self._here.load_weights(weights, version)
        state = self._model.state_dict()
        await asyncio.to_thread(shared_weights.write, self._shared, state)
        await asyncio.gather(*(other.load(version, _LOAD_S) for other in self._others))

    def progress(self) -> float:
        """A number that changes with each step of an engine and each version of the weights."""
        return self._here.progress() + sum(other.steps for other in self._others)

    def component_status(self) -> dict[str, str]:
        """What each process is doing."""
        status = self._here.component_status()
        for number, other in enumerate(self._others):
            status[f"sampling process {other.pid}"] = f"{self._open[number]} episodes"
        return status

    def facts(self) -> dict[str, object]:
        """Properties of the policy that a run records."""
        return self._here.facts() | {"processes": len(self._others) + 1}

    def take_metrics(self) -> dict[str, float]:
        """An empty dict."""
        return {}

    async def close(self) -> None:
        """End every process. Running calls raise PolicyFailure."""
        await asyncio.gather(self._here.close(), *(other.close() for other in self._others))

    def _sampler(self, number: int) -> LocalPolicy | SamplingProcess:
        return self._here if number < 0 else self._others[number]

    def _place(self, prompt_ids: Sequence[int], session: str | None) -> int:
        """The process of a session: that of an equal first prompt, else the one with least work.

        Where all episodes begin with one prompt, one process may not be far ahead of another.
        """
        if session is not None and session in self._places:
            return self._places[session][0]
        prompt = array("q", prompt_ids).tobytes()
        least = min(range(-1, len(self._others)), key=self._load)
        equal = self._prompts.get(prompt, Counter())
        chosen = min((n for n in equal if equal[n]), key=self._load, default=least)
        if self._load(chosen) - self._load(least) >= self._lead:
            chosen = least
        if session is not None:
            self._open[chosen] += 1
            self._places[session] = chosen, prompt
            self._prompts.setdefault(prompt, Counter())[chosen] += 1
        return chosen

    def _load(self, number: int) -> int:
        return self._open[number]
