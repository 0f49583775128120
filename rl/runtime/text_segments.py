"""Conversations to imitate, as tokens of a runtime's model."""

from __future__ import annotations

import logging

from agents.segment import Segment
from rl.data.conversations import read_conversations
from rl.data.demonstrations import NoDemonstrations, demonstrate
from rl.errors import UsageError
from rl.runtime.imitation import check_lengths
from rl.runtime.runtime import Runtime
from rl.settings.train import TrainConfig

logger = logging.getLogger(__name__)


async def text_segments(runtime: Runtime, data: str, demonstrations: int) -> list[Segment]:
    """The conversations of ``data``, rendered with the model's chat template.

    Args:
        runtime: the open runtime, with the model and the environment that demonstrates.
        data: "demonstrations" for the environment's demonstrator, or a file of messages.
        demonstrations: number of demonstrated episodes, at most one episode for each task.

    Raises:
        UsageError: the data is wrong, or a conversation exceeds the model's window.
    """
    config = runtime.config
    env_id, options = config.env.env_id, config.env.options
    key = "texts.data" if isinstance(config, TrainConfig) else "data"
    try:
        if data != "demonstrations":
            conversations = read_conversations(data, key)
        else:
            tasks = runtime.collector("train", runtime.config.sampling_params).make_env().tasks
            count = min(demonstrations, len(tasks))
            conversations = await demonstrate(
                env_id, options, runtime.services, range(count), config.seed
            )
    except NoDemonstrations as error:
        raise UsageError(f"{error}, or give {key}=FILE of conversations") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    foreign = sum(c.tokenizer not in ("", runtime.renderer.identity) for c in conversations)
    if foreign:
        logger.warning(
            "%d of %d conversations hold another tokenizer's tokens: their texts are rendered",
            foreign,
            len(conversations),
        )
    try:
        segments = [conversation.to_segment(runtime.renderer) for conversation in conversations]
    except ValueError as error:
        raise UsageError(f"{key} ({data}): {error}") from error
    check_lengths(runtime.learner.facts.context_window, segments)
    return segments
