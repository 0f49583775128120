"""A local model as a judge. It scores the options of a question and generates nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch
from transformers import PreTrainedModel
from transformers.utils import logging as transformers_logging

from agents.renderer import Renderer
from agents.segment import Segment
from envs.judges.chooser import JudgeFailure, Message
from rl.credit.batch import Batch
from rl.data.conversations import unsampled
from rl.learner.model import load_model
from rl.learner.scoring import ScoringModel
from rl.learner.settings import NO_TRAINING
from rl.runtime.model import load_tokenizer
from rl.settings.chat import OWN_TEMPLATE, ChatConfig

_MAX_TOKENS = 65536
"""Maximum tokens of one forward pass, padding included."""


class LocalChooser:
    """Chooses by a softmax over the log-probabilities of the options' tokens.

    If one option's tokens begin with another's, as "10" begins with "1", every option includes the
    end of the message. The model then either stops after "1" or continues to "10".

    Args:
        model: the judge's model. It is not copied.
        renderer: renderer of the judge's tokenizer.
    """

    def __init__(self, model: ScoringModel, renderer: Renderer) -> None:
        self._model = model
        self._renderer = renderer
        self._window = model.context_window
        # One forward pass at a time, and not on the event loop.
        self._thread = ThreadPoolExecutor(1, "turnwise-judge")

    @property
    def model(self) -> PreTrainedModel:
        """The judge's model."""
        return self._model.model

    async def __call__(self, messages: Sequence[Message], options: Sequence[str]) -> list[float]:
        """The probabilities of the options as the next words; see ``envs.judges.chooser.Chooser``.

        Raises:
            JudgeFailure: the conversation is longer than the model's context window.
        """
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._choose, messages, options)

    def _choose(self, messages: Sequence[Message], options: Sequence[str]) -> list[float]:
        context = self._renderer.start(messages)
        words = [self._renderer.splice(option) for option in options]
        if any(a != b and b[: len(a)] == a for a in words for b in words):
            words = [[*word, self._renderer.end_token_ids[0]] for word in words]
        longest = len(context) + max(map(len, words))
        if longest > self._window:
            raise JudgeFailure(
                f"the conversation to judge has {longest} tokens, more than the judge's context "
                f"window of {self._window}",
                retryable=False,
            )
        batch = Batch.from_segments([_segment(context, word) for word in words])
        logprobs, _ = self._model.score_batch(batch, _MAX_TOKENS)
        totals = torch.zeros(len(words), dtype=torch.float64)
        totals.index_add_(0, batch.episode_ids, logprobs)
        probabilities: list[float] = totals.softmax(0).tolist()
        return probabilities


def load_judge(
    path: str,
    device: torch.device | str,
    dtype: torch.dtype,
    chat: ChatConfig = OWN_TEMPLATE,
) -> LocalChooser:
    """A judge from a folder or a hub id.

    Args:
        path: a folder in the Hugging Face layout, or a hub id.
        device: device of the model.
        dtype: type of the weights.
        chat: how messages become the judge's prompt.

    Raises:
        ValueError: there is no model at the path, or the model or its tokenizer cannot be used.
    """
    transformers_logging.disable_progress_bar()
    model = load_model(path, device=device, dtype=dtype)
    # The options of a question share its tokens.
    scorer = ScoringModel(model, memory=NO_TRAINING, packing=True)
    return LocalChooser(scorer, Renderer(load_tokenizer(path, chat)))


def _segment(context: Sequence[int], word: Sequence[int]) -> Segment:
    segment = Segment()
    segment.append_context(context, 0)
    segment.append_completion(unsampled(word), 0)
    return segment
