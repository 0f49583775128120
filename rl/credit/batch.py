"""Batches: from trajectories to a table of trained tokens and micro-batches of rows.

A batch is two tables. *Rows* are the sequences that the model reads, one for each segment of each
episode. *Tokens* are the N sampled tokens of all rows, ordered by episode and then by time. Losses
and advantages read tokens only; rows exist for the model.

Position t - 1 predicts the token at position t. Only :meth:`_Tables.add_segment` makes this shift.
All other code uses ``source``, the position whose hidden state predicts the token and gives the
value of the state before the token.

With ``mask_observations=False`` the table also has the observations between sampled tokens, and
"sampled" below means trained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from rl.credit.logprobs import Support
from rl.packing.layout import Layout, pack, placed
from rl.packing.parts import cut_rows
from rl.packing.prefixes import Integers, Part, split
from rl.rollout.trajectory import Segment, Trajectory, TrajectoryGroup


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Rows of one forward pass: one packed row, or several rows that are padded on the right.

    The padding needs no mask. In a causal model a position reads only positions to its left, so
    padding on the right cannot change a real position, and only real positions are used.
    """

    input_ids: Tensor
    """``[B, T]``; B is 1 for a packed row."""
    lengths: Tensor
    """Number of tokens of each sequence, without padding. A padded row is one sequence."""
    source: Tensor
    """``[n]``, index of the position that predicts each token, in the flattened ``[B * T]``."""
    targets: Tensor
    """``[n]``, the sampled token ids."""
    tokens: Tensor
    """``[n]``, on the CPU: indices into the batch's table of tokens."""
    support: Support | None = None
    """Sampling support of each token, or None for the whole vocabulary."""
    layout: Layout | None = None
    """Layout of the packed row, or None if the rows are padded."""
    experts: Tensor | None = None
    """``[B * T, layers, k]``, int16, the sampler's experts; -1 where they are not recorded."""

    @property
    def num_tokens(self) -> int:
        """Number of sampled tokens."""
        return len(self.targets)

    def map(self, change: Callable[[Tensor], Tensor]) -> MicroBatch:
        """A copy with ``change`` applied to the tensors. ``tokens`` stays on the CPU."""
        names = ("input_ids", "lengths", "source", "targets")
        changed: dict[str, Any] = {name: change(getattr(self, name)) for name in names}
        for name in ("support", "layout"):
            part = getattr(self, name)
            changed[name] = None if part is None else part.map(change)
        changed["experts"] = None if self.experts is None else change(self.experts)
        return replace(self, **changed)


@dataclass(frozen=True, slots=True)
class Batch:
    """The episodes of one update: M episodes, K turns with a token, N sampled tokens.

    Each role of an episode counts as a separate episode, with the role's conversation and rewards.
    The role's group consists of the same role in all members of the episode's group. The reward of
    a turn is the sum of the rewards from the turn up to the role's next turn with a token. Rewards
    before a role's first token belong to its first turn.
    """

    rows: list[Integers]
    """Token ids of each row that the model reads. A row ends before its last sampled token."""
    row_starts: Integers
    """``[len(rows) + 1]``: the tokens of row i are row_starts[i] to row_starts[i + 1]."""
    source: Integers
    """``[N]``, the position in the token's row whose hidden state predicts the token."""
    targets: Integers
    """``[N]``, the sampled token ids."""
    episode_ids: Tensor
    """``[N]``, the episode of each token, in non-decreasing order."""
    sampling_logprobs: Tensor
    """``[N]``, float64, log-probability by the sampler. 0 for a token that was not sampled."""
    versions: Tensor
    """``[N]``, version of the weights that sampled the token. -1 if it was not sampled."""
    support: Support | None
    """Sampling support of each token, or None for the whole vocabulary."""
    sampled: Tensor
    """``[N]`` booleans, whether the policy sampled the token. False for an observation's token."""
    turn_ends: Tensor
    """``[K]``, index of the last sampled token of each turn."""
    turn_rewards: Tensor
    """``[K]``, float64. The rewards of an episode's turns add up to its return."""
    turn_values: Tensor
    """``[K]``, float64, value of the state before the turn, or NaN if the state has no value."""
    turn_anchors: Tensor
    """``[K]`` integers >= 0, equal for turns of a group that answer the same observation."""
    rewards: Tensor
    """``[M]``, float64, each episode's return."""
    outcomes: Tensor
    """``[M]``, float64, success of each episode from 0 to 1, or 0 if it is unknown."""
    group_ids: Tensor
    """``[M]``, the group of each episode."""
    num_failed: int
    """Number of failed episodes. They are not in the batch."""
    num_empty: int
    """Number of episodes without a sampled token. They count only in the baseline."""
    num_masked: int
    """Number of episodes that ``mask_truncated`` dropped. They count only in the baseline."""
    experts: list[NDArray[np.integer[Any]] | None]
    """Each row's :attr:`agents.segment.Segment.experts`."""
    roles: tuple[str, ...] = ()
    """The role of each of the M episodes, in a mixture after the part's name: ``PART/ROLE``."""
    unmasked: Batch | None = None
    """The same episodes with the tokens and turns that ``mask_truncated`` dropped, if it did."""

    @property
    def num_tokens(self) -> int:
        """Number of sampled tokens."""
        return len(self.targets)

    @classmethod
    def from_groups(
        cls,
        groups: Sequence[TrajectoryGroup],
        *,
        mask_observations: bool = True,
        mask_truncated: bool = False,
    ) -> Batch:
        """Make a batch of all finished episodes of ``groups``.

        An episode's ``reward_weight`` multiplies the rewards of its turns. Each role earns the
        episode's shaping at its last turn.

        Args:
            groups: the groups of one update.
            mask_observations: whether to train on sampled tokens only, not on observations.
            mask_truncated: whether to drop the tokens of episodes that were cut for their length.
                Their returns still count, and :attr:`unmasked` has their tokens.

        Raises:
            AssertionError: a trajectory's record contradicts itself.
            ValueError: a segment's first token is sampled, so no token precedes it.
        """
        finished = [(i, t) for i, group in enumerate(groups) for t in group.finished]
        tables = _Tables(mask_observations, mask_truncated)
        rank = {role: i for i, role in enumerate(sorted({r for _, t in finished for r in t.roles}))}
        returns: list[float] = []
        outcomes: list[float] = []
        group_ids: list[int] = []
        names: list[str] = []
        for group, trajectory in finished:
            trajectory.check()
            for role in trajectory.roles:
                group_ids.append(group + len(groups) * rank[role])
                tables.add_role(trajectory, role, group_ids[-1])
                paid = trajectory.reward_weight * sum(trajectory.rewards_of(role))
                returns.append(paid + trajectory.shaping_sum)
                outcomes.append(trajectory.outcome or 0.0)
                names.append(f"{trajectory.part}/{role}" if trajectory.part else role)
        batch = tables.batch(
            rewards=returns,
            outcomes=outcomes,
            group_ids=group_ids,
            num_failed=sum(len(g.trajectories) for g in groups) - len(finished),
        )
        unmasked = None
        if batch.num_masked:
            unmasked = cls.from_groups(groups, mask_observations=mask_observations)
        return replace(batch, roles=tuple(names), unmasked=unmasked)

    def whole_vocabulary(self) -> Batch:
        """A copy in which the support of every token is the whole vocabulary."""
        return replace(self, support=None)

    @classmethod
    def from_segments(cls, segments: Sequence[Segment]) -> Batch:
        """Make a batch of texts to imitate. Each segment is an episode without reward.

        The support of every token is the whole vocabulary.

        Raises:
            ValueError: a segment's first token is trained, so no token precedes it.
        """
        tables = _Tables()
        for segment in segments:
            tables.add_segment(segment)
            tables.num_episodes += 1
        count = len(segments)
        nothing = [0.0] * count
        return tables.batch(
            rewards=nothing, outcomes=nothing, group_ids=list(range(count)), num_failed=0
        ).whole_vocabulary()

    def per_episode(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """``x`` ``[N]`` with one row per episode, and the rows' loss_mask: ``[M, L]`` each."""
        loss_mask = self._loss_mask()
        return x.new_zeros(loss_mask.shape).masked_scatter(loss_mask, x), loss_mask

    def _loss_mask(self) -> Tensor:
        lengths = torch.bincount(self.episode_ids, minlength=len(self.rewards))
        width = int(lengths.max()) if len(lengths) else 0
        return torch.arange(width) < lengths[:, None]

    def micro_batches(
        self,
        max_tokens: int,
        episodes: Tensor | None = None,
        *,
        whole: bool = False,
        packed: int = 0,
    ) -> list[MicroBatch]:
        """Cut rows into micro-batches of at most ``max_tokens`` tokens, including padding.

        Padded rows are sorted by length, longest first. A row (with ``whole``, an episode) longer
        than ``max_tokens`` is a micro-batch of its own.

        Args:
            max_tokens: maximum tokens of a micro-batch.
            episodes: ``[M]`` booleans, the episodes to include; all if None.
            whole: whether all rows of an episode must be in one micro-batch.
            packed: maximum tokens up to which ``rl.packing`` fills a row. If 0, rows are padded.
        """
        owners = self.episode_ids.numpy()[self.row_starts[:-1]]
        chosen = np.arange(len(self.rows))
        if episodes is not None:
            chosen = chosen[episodes.numpy()[owners]]
        together: dict[int, list[int]] = {}
        for i in sorted(chosen.tolist(), key=lambda i: -len(self.rows[i])):
            together.setdefault(int(owners[i]) if whole else i, []).append(i)
        units = list(together.values())
        if packed:
            return [self._pack(part) for part in split(self.rows, units, max_tokens, packed)]
        return [self._pad(part) for part in cut_rows(units, self.rows, max_tokens)]

    def _pad(self, part: list[int]) -> MicroBatch:
        width = len(self.rows[part[0]])
        input_ids = np.zeros((len(part), width), dtype=np.int64)
        for place, i in enumerate(part):
            input_ids[place, : len(self.rows[i])] = self.rows[i]
        places = np.arange(input_ids.size).reshape(input_ids.shape)
        return self._micro_batch(part, list(places), input_ids)

    def _pack(self, part: Part) -> MicroBatch:
        ids, layout, places = pack([self.rows[i] for i in part.sequences], part.shared)
        return self._micro_batch(part.sequences, places, ids[None], layout)

    def _micro_batch(
        self,
        part: list[int],
        places: list[Integers],
        input_ids: Integers,
        layout: Layout | None = None,
    ) -> MicroBatch:
        """The micro-batch of rows ``part``, whose tokens are at ``places`` of the flat input."""
        spans = [np.arange(self.row_starts[i], self.row_starts[i + 1]) for i in part]
        source = [at[self.source[span]] for at, span in zip(places, spans, strict=True)]
        tokens = np.concatenate(spans)
        numbers = torch.from_numpy(tokens)
        return MicroBatch(
            input_ids=torch.from_numpy(input_ids),
            lengths=torch.tensor([len(self.rows[i]) for i in part]),
            source=torch.from_numpy(np.concatenate(source)),
            targets=torch.from_numpy(self.targets[tokens]),
            tokens=numbers,
            support=self.support.of_tokens(numbers) if self.support is not None else None,
            layout=layout,
            experts=placed([self.experts[i] for i in part], places, input_ids.size),
        )


@dataclass(slots=True)
class _Tables:
    """The tables of a batch while it is built."""

    mask_observations: bool = True
    mask_truncated: bool = False
    num_episodes: int = 0
    num_tokens: int = 0
    num_empty: int = 0
    num_masked: int = 0
    rows: list[Integers] = field(default_factory=list)
    experts: list[NDArray[np.integer[Any]] | None] = field(default_factory=list)
    row_starts: list[int] = field(default_factory=lambda: [0])
    source: list[Integers] = field(default_factory=list)
    targets: list[Integers] = field(default_factory=list)
    episode_ids: list[Integers] = field(default_factory=list)
    sampling_logprobs: list[NDArray[np.float64]] = field(default_factory=list)
    versions: list[Integers] = field(default_factory=list)
    supports: list[tuple[int, list[list[int]]]] = field(default_factory=list)
    """Spans of tokens with a limited support: index of the first token, and each token's ids."""
    sampled: list[NDArray[np.bool_]] = field(default_factory=list)
    turn_ends: list[Integers] = field(default_factory=list)
    turn_rewards: list[float] = field(default_factory=list)
    turn_values: list[float] = field(default_factory=list)
    turn_anchors: list[int] = field(default_factory=list)
    anchors: dict[tuple[int, str | None], int] = field(default_factory=dict)
    """Number of each observation, by group and text. Before the first turn, the text is None."""

    def add_role(self, trajectory: Trajectory, role: str, group_id: int) -> None:
        """Append a role's part of an episode, with the episode's shaping at the last turn."""
        start = self.num_tokens
        if self.mask_truncated and trajectory.cut_for_length:
            self.num_episodes += 1
            self.num_masked += 1
            return
        turn_ids = [self.add_segment(s) for s in trajectory.segments if s.role == role]
        self.num_episodes += 1
        if self.num_tokens == start:
            self.num_empty += 1
            return
        sampled_turns = np.concatenate(turn_ids)
        assert (np.diff(sampled_turns) >= 0).all(), "segments are not in the order of time"
        turns = [i for i, t in enumerate(trajectory.turns) if t.role == role and t.num_tokens]
        paid = trajectory.reward_weight * np.asarray(trajectory.rewards_of(role))
        earned_by = np.searchsorted(turns, np.arange(len(paid)), side="right") - 1
        rewards = np.bincount(earned_by.clip(min=0), weights=paid, minlength=len(turns))
        rewards[-1] += trajectory.shaping_sum
        self.turn_ends.append(start + np.searchsorted(sampled_turns, turns, side="right") - 1)
        self.turn_rewards.extend(rewards.tolist())
        for i in turns:
            value = trajectory.turns[i].value
            self.turn_values.append(math.nan if value is None else value)
            seen = trajectory.turns[i - 1].observation if i else None
            self.turn_anchors.append(self.anchors.setdefault((group_id, seen), len(self.anchors)))

    def add_segment(self, segment: Segment) -> Integers:
        """Append a segment's row and its trained tokens, and return each trained token's turn."""
        loss_mask = np.asarray(segment.loss_mask, dtype=np.bool_)
        positions = np.flatnonzero(loss_mask)
        if len(positions) and not self.mask_observations:
            positions = np.arange(positions[0], positions[-1] + 1)
        turn_ids = np.asarray(segment.turn_ids, dtype=np.int64)[positions]
        if not len(positions):
            return turn_ids
        if positions[0] == 0:
            raise ValueError(
                "loss_mask is 1 at the first token of a segment, but no token precedes it to "
                "predict it: start the segment with a prompt token"
            )
        token_ids = np.asarray(segment.token_ids, dtype=np.int64)
        self.rows.append(token_ids[: positions[-1]])
        self.experts.append(segment.experts)
        self.source.append(positions - 1)
        self.targets.append(token_ids[positions])
        self.episode_ids.append(np.full(len(positions), self.num_episodes, dtype=np.int64))
        self.sampling_logprobs.append(
            np.asarray(segment.sampling_logprobs, dtype=np.float64)[positions]
        )
        self.versions.append(np.asarray(segment.versions, dtype=np.int64)[positions])
        if segment.supports:
            self.supports.append((self.num_tokens, [segment.supports[p] for p in positions]))
        self.sampled.append(loss_mask[positions])
        self.num_tokens += len(positions)
        self.row_starts.append(self.num_tokens)
        return turn_ids

    def batch(
        self,
        rewards: list[float],
        outcomes: list[float],
        group_ids: list[int],
        num_failed: int,
    ) -> Batch:
        return Batch(
            rows=self.rows,
            row_starts=np.asarray(self.row_starts, dtype=np.int64),
            source=_joined(self.source),
            targets=_joined(self.targets),
            episode_ids=torch.from_numpy(_joined(self.episode_ids)),
            sampling_logprobs=torch.from_numpy(_joined(self.sampling_logprobs, np.float64)),
            versions=torch.from_numpy(_joined(self.versions, np.int64)),
            sampled=torch.from_numpy(_joined(self.sampled, np.bool_)),
            support=Support.of(self.supports, self.num_tokens) if self.supports else None,
            turn_ends=torch.from_numpy(_joined(self.turn_ends)),
            turn_rewards=torch.tensor(self.turn_rewards, dtype=torch.float64),
            turn_values=torch.tensor(self.turn_values, dtype=torch.float64),
            turn_anchors=torch.tensor(self.turn_anchors, dtype=torch.int64),
            rewards=torch.tensor(rewards, dtype=torch.float64),
            outcomes=torch.tensor(outcomes, dtype=torch.float64),
            group_ids=torch.tensor(group_ids, dtype=torch.int64),
            num_failed=num_failed,
            num_empty=self.num_empty,
            num_masked=self.num_masked,
            experts=self.experts,
        )


def _joined(parts: list[NDArray[Any]], dtype: DTypeLike = np.int64) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.empty(0, dtype=dtype)
