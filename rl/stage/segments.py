"""Conversations to imitate as the tokens of a stage's model."""

from __future__ import annotations

import logging

from agents.segment import Segment
from rl.config import TrainConfig
from rl.data.conversations import read_conversations
from rl.errors import UsageError
from rl.imitation.demonstrations import NoDemonstrations, demonstrate
from rl.imitation.training import check_lengths
from rl.stage.stage import Stage

logger = logging.getLogger(__name__)


async def text_segments(stage: Stage, data: str, demonstrations: int) -> list[Segment]:
    """What ``data`` names, rendered with the model's chat template.

    Args:
        stage: its environment's author is asked, its model will read.
        data: "demonstrations", or a file of messages.
        demonstrations: how many episodes the author plays, at most one for each task.

    Raises:
        UsageError: the data is not what it should be, or longer than the model's window.
    """
    config = stage.config
    env_id, options = config.env.env_id, config.env.options
    key = "texts.data" if isinstance(config, TrainConfig) else "data"
    try:
        if data != "demonstrations":
            conversations = read_conversations(data, key)
        else:
            tasks = stage.collector("train", stage.config.sampling_params).make_env().tasks
            count = min(demonstrations, len(tasks))
            conversations = await demonstrate(
                env_id, options, stage.services, range(count), config.seed
            )
    except NoDemonstrations as error:
        raise UsageError(f"{error}, or give {key}=FILE of conversations") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    foreign = sum(c.tokenizer not in ("", stage.renderer.identity) for c in conversations)
    if foreign:
        logger.warning(
            "%d of %d conversations hold another tokenizer's tokens: their texts are rendered",
            foreign,
            len(conversations),
        )
    segments = [conversation.to_segment(stage.renderer) for conversation in conversations]
    check_lengths(stage.learner.facts.context_window, segments)
    return segments
