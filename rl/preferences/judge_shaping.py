"""A judge as a shaping: ``shaping=judge(model='NAME', url='http://localhost:8000/v1')``.

The expected grade of an answer is its reward, so no reward model is trained. This is d-RLAIF (arXiv
2309.00267, section 2.2.2).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import TYPE_CHECKING, Any

from envs.judges.chooser import Chooser
from envs.judges.verdicts import CRITERIA, expected_grade, grades
from rl.credit.shaping import LocalModel, Member, Shaping
from rl.errors import RunFailure
from tools.limits import CallLimits
from tools.tool import ToolFailure

if TYPE_CHECKING:
    from rl.learner.memory.host import WaitingWeights
    from rl.rollout.trajectory import Trajectory

SILENT = -1.0
"""Reward of an episode without an action: the worst grade."""


def judge(
    model: str,
    url: str = "",
    key: str = "",
    criteria: str = CRITERIA,
    scale: int = 10,
    timeout_s: float = 60.0,
    retries: int = 3,
    concurrent: int = 32,
) -> Shaping:
    """A shaping whose reward is the expected grade of an episode, from -1 to 1.

    Args:
        model: the judge, as a folder or a Hugging Face id; with ``url``, the model's name in the
            API.
        url: URL of an OpenAI-compatible API. If empty, the model runs in this process.
        key: name of the environment variable with the API's key, or "" if the API needs none.
        criteria: what makes an answer good.
        scale: the best grade; 1 is the worst.
        timeout_s: deadline of a request, in seconds.
        retries: maximum number of retries after a temporary failure.
        concurrent: maximum number of concurrent requests.

    Raises:
        ValueError: a number is out of range, or the environment variable is not set.
    """
    if scale < 2:
        raise ValueError(f"scale ({scale}) must be >= 2")
    if key and key not in os.environ:
        raise ValueError(f"key ({key}) is not a set environment variable")
    limits = CallLimits(timeout_s=timeout_s, retries=retries, max_concurrent=concurrent)
    grader = _Grader(model, url, os.environ[key] if key else "", limits)
    return Shaping(
        "judge",
        lambda members: grader.judge(members, criteria, scale),
        judges=True,
        by_group=False,
        model=None if url else LocalModel(model, grader.offload, classifier=False),
    )


class _Grader:
    """Grades episodes. A local model is loaded when the first step is shaped."""

    def __init__(self, model: str, url: str, key: str, limits: CallLimits) -> None:
        self._model, self._url, self._key = model, url, key
        self._limits = limits
        self._weights: WaitingWeights | None = None

    def offload(self) -> None:
        """Move a local model's weights to the host's memory, if the model is loaded."""
        if self._weights is not None:
            self._weights.offload()

    def judge(self, members: Sequence[Member], criteria: str, scale: int) -> list[float]:
        """The expected grade of each episode.

        Raises:
            RunFailure: the judge gives no verdict; a failure is never a reward.
        """
        episodes = [member.episode for member in members]
        # The caller's thread already runs an event loop.
        with ThreadPoolExecutor(1, "turnwise-judge") as thread:
            try:
                return thread.submit(asyncio.run, self._judge(episodes, criteria, scale)).result()
            except ToolFailure as failure:
                raise RunFailure(
                    f"shaping judge: {failure}; continue with resume=auto when the judge is back"
                ) from failure

    async def _judge(
        self, episodes: Sequence[Trajectory | None], criteria: str, scale: int
    ) -> list[float]:
        if not self._url:
            chooser = self._local
            if self._weights is not None:
                self._weights.onload()
            return await _all(chooser, episodes, criteria, scale)
        from envs.judges.endpoint import ChatEndpoint, EndpointChooser

        endpoint = ChatEndpoint(self._url, self._model, key=self._key, limits=self._limits)
        async with endpoint:
            return await _all(EndpointChooser(endpoint), episodes, criteria, scale)

    @cached_property
    def _local(self) -> Chooser:
        import torch

        from rl.learner.memory.host import WaitingWeights
        from rl.preferences.judge_model import load_judge

        here = "cuda" if torch.cuda.is_available() else "cpu"
        dtype = torch.float32 if here == "cpu" else torch.bfloat16
        chooser = load_judge(self._model, here, dtype)
        self._weights = WaitingWeights(chooser.model)
        return chooser


async def _all(
    chooser: Chooser, episodes: Sequence[Trajectory | None], criteria: str, scale: int
) -> list[float]:
    """The grades of all episodes. Raises the first failure."""

    async def one(episode: Trajectory | None) -> float:
        if episode is None:
            raise ValueError("a judge reads episodes, but this member has none")
        if not episode.turns:
            return SILENT
        grade = await grades(chooser, _request(episode), _answer(episode), criteria, scale)
        return expected_grade(grade)

    tasks = [asyncio.ensure_future(one(episode)) for episode in episodes]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _request(episode: Trajectory) -> Any:
    """The first observation, with the system message if there is one."""
    if not episode.system:
        return episode.observation
    return [
        {"role": "system", "content": episode.system},
        {"role": "user", "content": episode.observation},
    ]


def _answer(episode: Trajectory) -> Any:
    """The action, or all actions and the observations between them if there are several turns."""
    *before, last = episode.turns
    if not before:
        return last.action
    messages = []
    for turn in before:
        messages.append({"role": "assistant", "content": turn.action})
        messages.append({"role": "user", "content": turn.observation})
    return [*messages, {"role": "assistant", "content": last.action}]
