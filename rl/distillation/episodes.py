"""Converts played episodes to conversations, for imitation, and to transcripts, for grading."""

from __future__ import annotations

from collections.abc import Sequence

from agents.completion import FinishReason
from agents.renderer import Renderer
from agents.segment import Segment
from envs.rewards import Transcript
from rl.data.conversations import Conversation, Exchange
from rl.rollout.trajectory import Trajectory


def conversation_of_episode(trajectory: Trajectory, renderer: Renderer) -> Conversation:
    """The conversation of an episode, with the sampled tokens.

    Args:
        trajectory: an episode of one trained role, with at least one turn. Turns of partners are
            not part of its conversation.
        renderer: the renderer of the episode.

    Raises:
        ValueError: the episode has several trained roles, hence several conversations, or a partner
            acted first.
    """
    if len(trajectory.segments) != 1:
        raise ValueError(
            f"{trajectory.env_id} is played by {len(trajectory.segments)} roles; a conversation is "
            f"of one"
        )
    if trajectory.turns[0].by_partner:
        raise ValueError(
            f"{trajectory.env_id} starts with a turn of the partner (role "
            f"{trajectory.turns[0].role}): the record lacks the system message of the other role"
        )
    (segment,) = trajectory.segments
    exchanges = []
    for place, (turn, observation) in enumerate(
        zip(trajectory.turns, _read(trajectory), strict=True)
    ):
        if turn.by_partner:
            continue
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


def transcript_of(trajectory: Trajectory) -> Transcript:
    """The transcript of a finished episode.

    The transcript has no reference answers, because only the environment knows them.
    """
    turns = zip(_read(trajectory), trajectory.turns, strict=True)
    own = [(read, turn) for read, turn in turns if not turn.by_partner]
    actions = [turn.action for _, turn in own]
    said = [text for read, turn in own for text in (read, turn.action)]
    cut = (FinishReason.LENGTH, FinishReason.CONTEXT_FULL)
    return Transcript(
        question=trajectory.observation,
        # The first observation is the question.
        text="".join(said[1:]),
        written="\n".join(actions),
        correct=trajectory.outcome or 0.0,
        complete=bool(actions) and own[-1][1].finish_reason not in cut,
    )


def _read(trajectory: Trajectory) -> Sequence[str]:
    """The observation before each turn."""
    after = [turn.observation for turn in trajectory.turns[:-1]]
    return [trajectory.observation, *after] if trajectory.turns else []


def _tokens_of(segment: Segment, turn: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A turn's context tokens and sampled tokens."""
    rows = zip(segment.token_ids, segment.loss_mask, segment.turn_ids, strict=True)
    own = [(token, mask) for token, mask, place in rows if place == turn]
    read = tuple(token for token, mask in own if not mask)
    return read, tuple(token for token, mask in own if mask)
