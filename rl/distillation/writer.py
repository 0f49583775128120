"""Writes distillation data: episodes become lines of conversations and preferences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from agents.renderer import Renderer
from rl.data.comparisons import ranked_pairs
from rl.data.conversations import Conversation, to_messages
from rl.distillation.episodes import conversation_of_episode, transcript_of
from rl.distillation.selection import Condition, Keep, Pairs, Sample, compared, kept
from rl.rollout.trajectory import Trajectory, TrajectoryGroup

_TOLERANCE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Rules that decide which episodes are right and which are selected."""

    keep: Keep
    per_task: int = 0
    """Maximum number of conversations per task; 0 keeps all."""
    pairs: Pairs = "none"
    pairs_per_task: int = 0
    """Maximum number of pairs per task; 0 keeps all."""
    conditions: tuple[Condition, ...] = ()
    """Conditions that every selected episode must meet."""
    longest: int = 0
    """Maximum number of sampled tokens per episode; 0 sets no limit."""
    right_from: float = 1.0
    """An episode is right if its outcome is at least this number, from 0 to 1."""


@dataclass
class DistillWriter:
    """Selects episodes, and collects the lines of two files: conversations and preferences.

    Args:
        rules: the rules of the selection.
        renderer: the renderer of the episodes.
    """

    rules: Rules
    renderer: Renderer
    conversations: list[dict[str, Any]] = field(default_factory=list)
    """Lines that ``rl.sft`` reads."""
    pairs: list[dict[str, Any]] = field(default_factory=list)
    """Lines that ``rl.dpo`` and ``rl.reward_model`` read."""
    num_pairs: int = 0
    """Number of pairs. A line that ranks K episodes holds up to K (K - 1) / 2 pairs."""
    samples: list[Sample] = field(default_factory=list)
    """All episodes that did not fail and have a turn."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of right episodes that were dropped, by the first condition that they do not meet."""
    tasks_kept: int = 0
    kept_lengths: list[int] = field(default_factory=list)
    rendered_alike: int = 0
    """Number of conversations whose rendered texts give exactly the sampled tokens."""

    def take(self, group: TrajectoryGroup) -> None:
        """Select episodes of one task, and add their lines.

        Raises:
            ValueError: an episode has several roles.
        """
        rules = self.rules
        played = [trajectory for trajectory in group.finished if trajectory.turns]
        everyone = [self._sample(trajectory) for trajectory in played]
        self.samples += everyone
        fine = [place for place, t in enumerate(played) if self._fine(t, everyone[place])]
        samples = [everyone[place] for place in fine]
        said = [conversation_of_episode(played[place], self.renderer) for place in fine]
        places = kept(samples, rules.keep, rules.per_task)
        self.tasks_kept += bool(places)
        for place in places:
            self._keep(said[place], samples[place], group.trajectories[0].task)
        for line, count in self._comparisons(said, samples):
            self.pairs.append(line | {"task": group.trajectories[0].task})
            self.num_pairs += count

    def summary(self) -> dict[str, float]:
        """Counts of episodes and pairs, and mean lengths in sampled tokens."""
        right = [sample.length for sample in self.samples if sample.right]
        lengths = {
            "length": [sample.length for sample in self.samples],
            "right_length": right,
            "kept_length": self.kept_lengths,
        }
        return {
            "episodes": len(self.samples),
            "right": len(right),
            **{f"dropped/{condition}": count for condition, count in self.dropped.items()},
            "kept": len(self.conversations),
            "tasks_kept": self.tasks_kept,
            "num_pairs": self.num_pairs,
            "rendered_alike": self.rendered_alike,
            **{name: fmean(values) for name, values in lengths.items() if values},
        }

    def _comparisons(
        self, said: Sequence[Conversation], samples: Sequence[Sample]
    ) -> Iterator[tuple[dict[str, Any], int]]:
        """Lines of preferences among the episodes of a task, each with its number of pairs."""
        rules, rewards = self.rules, [sample.reward for sample in samples]
        if rules.pairs == "ranking":
            if count := len(ranked_pairs(rewards)):
                yield ranking_line(said, rewards), count
            return
        for better, worse in compared(samples, rules.pairs, rules.pairs_per_task):
            yield pair_line(said[better], said[worse], (rewards[better], rewards[worse])), 1

    def _keep(self, said: Conversation, sample: Sample, task: int) -> None:
        texts = Conversation(said.exchanges, said.system).to_segment(self.renderer)
        self.rendered_alike += texts.token_ids == said.to_segment(self.renderer).token_ids
        self.kept_lengths.append(sample.length)
        self.conversations.append(
            {
                "messages": to_messages(said),
                "tokenizer": said.tokenizer,
                "task": task,
                "reward": sample.reward,
            }
        )

    def _sample(self, trajectory: Trajectory) -> Sample:
        right = (trajectory.outcome or 0.0) >= self.rules.right_from - _TOLERANCE
        return Sample(trajectory.reward, right, trajectory.num_sampled)

    def _fine(self, trajectory: Trajectory, sample: Sample) -> bool:
        """Whether an episode meets every condition."""
        broken = f"longest={self.rules.longest}" if self._too_long(sample) else None
        if broken is None and self.rules.conditions:
            transcript = transcript_of(trajectory)
            broken = next((c.text for c in self.rules.conditions if not c.met(transcript)), None)
        if broken is not None and sample.right:
            self.dropped[broken] += 1
        return broken is None

    def _too_long(self, sample: Sample) -> bool:
        return 0 < self.rules.longest < sample.length


def pair_line(
    better: Conversation, worse: Conversation, rewards: Sequence[float]
) -> dict[str, Any]:
    """A preference in TRL's conversational format, with the rewards of both answers.

    Args:
        better: the preferred conversation.
        worse: another conversation with the same messages before the assistant's first.
        rewards: the rewards of both.
    """
    prompt, (chosen, rejected) = _answers([better, worse])
    return {
        "prompt": prompt,
        "chosen": chosen,
        "rejected": rejected,
        "tokenizer": better.tokenizer,
        "chosen_reward": rewards[0],
        "rejected_reward": rewards[1],
    }


def ranking_line(said: Sequence[Conversation], rewards: Sequence[float]) -> dict[str, Any]:
    """A line that ranks conversations with the same first messages by their rewards.

    Args:
        said: two or more conversations.
        rewards: the reward of each; equal rewards are ties.
    """
    prompt, answers = _answers(said)
    return {
        "prompt": prompt,
        "completions": answers,
        "scores": list(rewards),
        "tokenizer": said[0].tokenizer,
    }


def _answers(
    said: Sequence[Conversation],
) -> tuple[list[dict[str, Any]], list[list[dict[str, Any]]]]:
    """The messages before the first answer, and each conversation's messages from there on."""
    messages = [to_messages(conversation) for conversation in said]
    first = next(n for n, message in enumerate(messages[0]) if message["role"] == "assistant")
    return messages[0][:first], [each[first:] for each in messages]
