"""The conversations of one episode as a tree of segments, and each request's place in the tree.

A request contains a whole history. If it continues a recorded conversation, the recorded tokens are
kept, and the tokens of the new messages are appended. If the request differs from a recorded
conversation before that conversation's end (an edited answer, a replaced tool result, the same
question again), it starts a fork: a new segment that begins with a copy of the shared tokens. The
shared tokens are trained only in the parent segment. If the request shares no answer with any
conversation, it begins a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agents.completion import Completion
from agents.segment import NOT_SAMPLED, Segment


@dataclass(frozen=True, slots=True)
class Cut:
    """A position in a conversation from which a request may continue."""

    branch: int
    num_messages: int
    """Number of messages before this position."""
    num_tokens: int
    """Number of tokens before this position."""
    turn: int
    """Number of the turn whose answer ends or starts at this position."""
    answered: bool
    """Whether the position is after an answer. If False, the position is before a recorded answer,
    and the request samples another answer there."""
    last: int | None = None
    """The answer's last token; None if there is none."""


@dataclass(slots=True)
class Branch:
    """One conversation, as messages and as tokens."""

    tools: str
    """The tools that the model was shown, as one text."""
    keys: list[str]
    """Keys of the messages (``agents.capture.messages.Message.key``)."""
    segment: Segment
    cuts: list[Cut] = field(default_factory=list)


class History:
    """All conversations of an episode so far."""

    def __init__(self) -> None:
        self.branches: list[Branch] = []

    def find(self, keys: Sequence[str], tools: str) -> Cut | None:
        """The position from which a request continues, or None if it begins a conversation.

        A position fits if the request begins with all messages before the position. Of the fitting
        positions, the one after the most messages is returned. Of equal ones, a position at the end
        of a conversation is preferred, then the position in the newest conversation.

        Args:
            keys: keys of the request's messages.
            tools: the request's tools. A request with other tools begins another conversation.
        """
        fitting = [
            cut
            for branch in self.branches
            if branch.tools == tools
            for cut in _fitting(branch, keys)
        ]
        return max(
            fitting,
            key=lambda cut: (cut.num_messages, self._ends(cut), cut.branch),
            default=None,
        )

    def edited(self, keys: Sequence[str]) -> int | None:
        """Index of an answer in the request that differs from the recorded answer, or None."""
        for branch in self.branches:
            same = _common(branch.keys, keys)
            differing = [each[same] for each in (branch.keys, keys) if same < len(each)]
            if len(differing) == 2 and all(key.startswith('["assistant"') for key in differing):
                return same
        return None

    def tokens(self, cut: Cut) -> list[int]:
        """The tokens before a position."""
        return [*self.branches[cut.branch].segment.token_ids[: cut.num_tokens]]

    def grow(
        self,
        cut: Cut | None,
        keys: Sequence[str],
        tools: str,
        context: Sequence[int],
        completion: Completion,
        turn: int,
    ) -> int:
        """Record an answer.

        If the conversation already continues after ``cut``, the answer starts a new conversation
        with a copy of the tokens before ``cut``.

        Args:
            cut: the position from which the request continued, or None if it began a conversation.
            keys: keys of the request's messages and of the answer, from ``key_of``.
            tools: the request's tools, as one text.
            context: the tokens between ``cut`` and the answer.
            completion: the answer.
            turn: the answer's number in the episode.

        Returns:
            The index of the answer's conversation.
        """
        index = self._branch_at(cut, tools)
        branch = self.branches[index]
        segment, branch.keys = branch.segment, list(keys)
        segment.append_context(context, turn)
        before = Cut(index, len(keys) - 1, len(segment), turn, answered=False)
        segment.append_completion(completion, turn)
        after = Cut(index, len(keys), len(segment), turn, answered=True, last=completion.last_token)
        branch.cuts += [before, after]
        return index

    def _branch_at(self, cut: Cut | None, tools: str) -> int:
        """Index of the conversation that ends at ``cut``, or of a new one."""
        if cut is not None and self._ends(cut):
            return cut.branch
        segment = Segment() if cut is None else _prefix(self.branches[cut.branch].segment, cut)
        self.branches.append(Branch(tools, [], segment))
        return len(self.branches) - 1

    def _ends(self, cut: Cut) -> bool:
        return cut.num_tokens == len(self.branches[cut.branch].segment)


def _fitting(branch: Branch, keys: Sequence[str]) -> list[Cut]:
    """The positions of a conversation from which a request with these messages may continue."""
    same = _common(branch.keys, keys)
    return [
        cut
        for cut in branch.cuts
        if cut.num_messages <= same and (cut.answered or cut.num_messages == len(keys))
    ]


def _common(first: Sequence[str], second: Sequence[str]) -> int:
    pairs = zip(first, second, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(second)))


def _prefix(segment: Segment, cut: Cut) -> Segment:
    """The start of a fork: a copy of the parent's first tokens, with loss_mask 0."""
    count = cut.num_tokens
    return Segment(
        token_ids=segment.token_ids[:count],
        loss_mask=[0] * count,
        sampling_logprobs=[0.0] * count,
        versions=[NOT_SAMPLED] * count,
        turn_ids=segment.turn_ids[:count],
        parent=cut.branch,
        offset=count,
    )
