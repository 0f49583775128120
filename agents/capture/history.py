"""The conversations of one episode as a tree of segments, and where a request belongs in it.

A request brings a whole history. Where it goes on from a recorded one, the recorded tokens stay
and the new messages' tokens are appended. Where it left a recorded one earlier (an answer was
edited, a tool's result replaced, the same question asked again), it forks there: the shared tokens
belong to the parent, which trains them. Where it shares no answer with any, it is a new one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agents.completion import Completion
from agents.segment import NOT_SAMPLED, Segment


@dataclass(frozen=True, slots=True)
class Cut:
    """A place in a conversation that a request may go on from."""

    branch: int
    num_messages: int
    """Messages before it."""
    num_tokens: int
    """Their tokens."""
    turn: int
    """The turn that it belongs to."""
    answered: bool
    """True: it stands behind an answer. False: before one, which is asked for once more."""
    ended: bool = False
    """Whether the answer's last token ends its message."""


@dataclass(slots=True)
class Branch:
    """One conversation: what was read and said, as messages and as tokens."""

    tools: str
    """What the model was told it may call, as one text."""
    keys: list[str]
    """Of its messages (``agents.capture.messages.Message.key``)."""
    segment: Segment
    cuts: list[Cut] = field(default_factory=list)


class History:
    """Every conversation of an episode so far."""

    def __init__(self) -> None:
        self.branches: list[Branch] = []

    def find(self, keys: Sequence[str], tools: str) -> Cut | None:
        """Where a request goes on from: behind as many shared messages as possible.

        Of equal places the end of a conversation is chosen, and then the youngest.

        Args:
            keys: of the request's messages.
            tools: what it says may be called; another list begins another conversation.
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
        """Which answer of a request is another one than was recorded in its place; None: none."""
        for branch in self.branches:
            same = _common(branch.keys, keys)
            differing = [each[same] for each in (branch.keys, keys) if same < len(each)]
            if len(differing) == 2 and all(key.startswith('["assistant"') for key in differing):
                return same
        return None

    def tokens(self, cut: Cut) -> list[int]:
        """The tokens before a place."""
        return self.branches[cut.branch].segment.token_ids[: cut.num_tokens]

    def grow(
        self,
        cut: Cut | None,
        keys: Sequence[str],
        tools: str,
        context: Sequence[int],
        completion: Completion,
        turn: int,
        *,
        ended: bool,
    ) -> int:
        """Record an answer.

        Meanwhile another one may have been recorded at the same place: this one forks then.

        Args:
            cut: where the request went on from; None: it began a conversation.
            keys: of the request's messages and of the answer.
            tools: what the request said may be called.
            context: the tokens between the place and the answer.
            completion: the answer.
            turn: its number.
            ended: whether its last token ends its message.

        Returns:
            The index of its conversation.
        """
        index = self._branch_at(cut, tools)
        branch = self.branches[index]
        segment, branch.keys = branch.segment, list(keys)
        segment.append_context(context, turn)
        before = Cut(index, len(keys) - 1, len(segment), turn, answered=False)
        segment.append_completion(completion, turn)
        after = Cut(index, len(keys), len(segment), turn, answered=True, ended=ended)
        branch.cuts += [before, after]
        return index

    def _branch_at(self, cut: Cut | None, tools: str) -> int:
        """The conversation that ends at ``cut``; a new one where none does."""
        if cut is not None and self._ends(cut):
            return cut.branch
        segment = Segment() if cut is None else _prefix(self.branches[cut.branch].segment, cut)
        self.branches.append(Branch(tools, [], segment))
        return len(self.branches) - 1

    def _ends(self, cut: Cut) -> bool:
        return cut.num_tokens == len(self.branches[cut.branch].segment)


def _fitting(branch: Branch, keys: Sequence[str]) -> list[Cut]:
    """The places of a conversation before which a request says the same."""
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
    """The beginning of a fork: the parent's tokens, which are trained there."""
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
