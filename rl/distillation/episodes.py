"""Episodes that were played, as conversations to imitate and as transcripts to grade."""

from __future__ import annotations

from collections.abc import Sequence

from agents.completion import FinishReason
from agents.renderer import Renderer
from agents.segment import Segment
from envs.rewards import Transcript
from rl.data.conversations import Conversation, Exchange
from rl.rollout.trajectory import Trajectory


def conversation_of_episode(trajectory: Trajectory, renderer: Renderer) -> Conversation:
    """What was read and said in an episode, with the very tokens.

    Args:
        trajectory: an episode of at least one turn, in which one role speaks.
        renderer: that the episode was played with.

    Raises:
        ValueError: several roles speak in it: it is several conversations.
    """
    if len(trajectory.segments) != 1:
        raise ValueError(
            f"{trajectory.env_id} is played by {len(trajectory.segments)} roles; a conversation is "
            f"of one"
        )
    (segment,) = trajectory.segments
    exchanges = []
    for place, (turn, observation) in enumerate(
        zip(trajectory.turns, _read(trajectory), strict=True)
    ):
        context, words = _tokens_of(segment, place)
        exchanges.append(
            Exchange(
                observation,
                turn.action,
                ended=words[-1] in renderer.end_token_ids,
                continues=place > 0 and list(context) == renderer.splice(observation),
                token_ids=(context, words),
            )
        )
    return Conversation(tuple(exchanges), trajectory.system, renderer.identity)


def transcript_of(trajectory: Trajectory, success: float) -> Transcript:
    """An episode as a rubric reads it; the answer and the gold ones are the environment's own.

    Args:
        trajectory: an episode.
        success: the environment's verdict, from 0 to 1.
    """
    actions = [turn.action for turn in trajectory.turns]
    said = [text for pair in zip(_read(trajectory), actions, strict=True) for text in pair]
    cut = (FinishReason.LENGTH, FinishReason.CONTEXT_FULL)
    return Transcript(
        question=trajectory.observation,
        # What the agent read first is the question.
        text="".join(said[1:]),
        written="\n".join(actions),
        correct=success,
        complete=bool(actions) and trajectory.turns[-1].finish_reason not in cut,
    )


def _read(trajectory: Trajectory) -> Sequence[str]:
    """What stood before each turn's action."""
    after = [turn.observation for turn in trajectory.turns[:-1]]
    return [trajectory.observation, *after] if trajectory.turns else []


def _tokens_of(segment: Segment, turn: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A turn's tokens: those that were read, and those that were sampled."""
    rows = zip(segment.token_ids, segment.loss_mask, segment.turn_ids, strict=True)
    own = [(token, mask) for token, mask, place in rows if place == turn]
    read = tuple(token for token, mask in own if not mask)
    return read, tuple(token for token, mask in own if mask)
