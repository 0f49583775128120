"""Reward models as shapings: ``shaping=reward_model(path='runs/rm/checkpoints/last')``.

A reward model reads an episode's sampled tokens, so it must have the policy's vocabulary. The model
is loaded when the first step is shaped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rl.credit.shaping import LocalModel, Member, Shaping

if TYPE_CHECKING:
    from agents.renderer import Renderer
    from agents.segment import Segment
    from rl.learner.memory.host import WaitingWeights
    from rl.preferences.reward_model import RewardModel
    from rl.rollout.trajectory import Trajectory


def reward_model(path: str, device: str = "auto") -> Shaping:
    """Scores an episode's last action by a reward model. An episode without an action scores 0.

    Args:
        path: a folder that ``python -m rl.reward_model`` saved, or a hub id.
        device: device of the model. "auto" selects the GPU if there is one.

    Raises:
        ValueError: the folder holds no reward model.
    """

    def score(rewarder: RewardModel, segments: Sequence[Segment]) -> list[float]:
        from rl.preferences.updater import Passes

        return Passes(rewarder).rewards(segments)

    return _judge("reward_model", path, device, score)


def score_episodes(
    path: str, groups: Sequence[Sequence[Trajectory]], device: str = "auto"
) -> list[list[float]]:
    """A reward model's scores, group by group, one for each episode.

    Args:
        path: a folder that ``python -m rl.reward_model`` saved, or a hub id.
        groups: the episodes.
        device: device of the model. "auto" selects the GPU if there is one.

    Raises:
        ValueError: the folder holds no reward model, or one for another tokenizer.
    """
    scored = reward_model(path, device)
    return [
        [*scored.contribute([Member(t.num_sampled, False, t.reward, episode=t) for t in group])]
        for group in groups
    ]


def process_model(
    path: str, by: Literal["min", "product"] = "min", device: str = "auto"
) -> Shaping:
    """Scores an episode's turns by a process reward model. An episode without an action scores 0.

    A turn's score is the model's probability, at the turn's last token, that the turn leads to a
    right answer.

    Args:
        path: a folder that ``python -m rl.reward_model process=true`` saved, or a hub id.
        by: the minimum of the turns' scores (Math-Shepherd), or their product.
        device: device of the model. "auto" selects the GPU if there is one.

    Raises:
        ValueError: the folder holds no reward model, or ``by`` is neither "min" nor "product".
    """
    if by not in ("min", "product"):
        raise ValueError(f"by ({by!r}) must be min or product")

    def score(rewarder: RewardModel, segments: Sequence[Segment]) -> list[float]:
        from rl.data.steps import turn_ends
        from rl.preferences.losses import solution_score
        from rl.preferences.process_rewards import step_scores

        found = step_scores(rewarder, segments, [turn_ends(segment) for segment in segments])
        return [solution_score(scores, by).item() for scores in found]

    return _judge("process_model", path, device, score)


Score = Callable[["RewardModel", Sequence["Segment"]], list[float]]


class _Scorer:
    """A reward model that is loaded at its first use, and can leave its device afterwards.

    Loading takes time, and a shaping is made while the command line is parsed.
    """

    def __init__(self, load: Callable[[], tuple[RewardModel, Renderer]]) -> None:
        self._load = load
        self._weights: WaitingWeights | None = None

    @cached_property
    def _loaded(self) -> tuple[RewardModel, Renderer]:
        from rl.learner.memory.host import WaitingWeights

        loaded = self._load()
        self._weights = WaitingWeights(loaded[0].model)
        return loaded

    def ready(self) -> tuple[RewardModel, Renderer]:
        """The model on its device, and the renderer of its tokenizer."""
        loaded = self._loaded
        if self._weights is not None:
            self._weights.onload()
        return loaded

    def offload(self) -> None:
        """Move the weights to the host's memory, if the model is loaded."""
        if self._weights is not None:
            self._weights.offload()


def _judge(name: str, path: str, device: str, score: Score) -> Shaping:
    check_folder(path)
    scorer = _Scorer(lambda: _load(name, path, device))

    def contribute(members: Sequence[Member]) -> list[float]:
        rewarder, renderer = scorer.ready()
        segments = [_last_segment(member) for member in members]
        for member, segment in zip(members, segments, strict=True):
            if member.episode is not None and segment is not None:
                _check_tokens(member.episode, segment, renderer)
        rewards = iter(score(rewarder, [s for s in segments if s is not None]))
        return [0.0 if segment is None else next(rewards) for segment in segments]

    model = LocalModel(path, scorer.offload, device=device)
    return Shaping(name, contribute, judges=True, by_group=False, model=model)


def check_folder(path: str) -> None:
    """Raise ValueError, before the run starts, unless a folder holds a reward model."""
    local = Path(path).expanduser()
    if not local.is_dir():
        return  # A hub id, or a folder that an earlier stage of the pipeline will write.
    config = local / "config.json"
    if not config.is_file():
        raise ValueError(f"path ({path}) has no config.json: give a reward model's folder")
    made = (json.loads(config.read_text(encoding="utf-8")).get("architectures") or [""])[0]
    if not made.endswith("ForSequenceClassification"):
        raise ValueError(
            f"path ({path}) holds a {made or 'model of no kind'}: give a folder that python -m "
            f"rl.reward_model saved"
        )


def _load(name: str, path: str, device: str) -> tuple[RewardModel, Renderer]:
    import torch
    from transformers import AutoTokenizer

    from agents.renderer import Renderer
    from rl.preferences.reward_model import RewardModel

    here = "cuda" if torch.cuda.is_available() else "cpu"
    rewarder = RewardModel.load(path, here if device == "auto" else device)
    if rewarder.of_steps != (name == "process_model"):
        other = "process_model" if rewarder.of_steps else "reward_model"
        raise ValueError(f"{path} holds no {name}: it was trained to be a {other}")
    tokenizer = AutoTokenizer.from_pretrained(str(Path(path).expanduser()))
    return rewarder, Renderer(tokenizer)


def _last_segment(member: Member) -> Segment | None:
    """The last segment that has sampled tokens, or None if no segment of the episode has any."""
    if member.episode is None:
        raise ValueError("a reward model reads episodes, but this member has none")
    if len(member.episode.roles) > 1:
        raise ValueError(
            f"a reward model reads episodes of one role, not of {', '.join(member.episode.roles)}"
        )
    sampled = [segment for segment in member.episode.segments if 1 in segment.loss_mask]
    return sampled[-1] if sampled else None


def _check_tokens(episode: Trajectory, segment: Segment, renderer: Renderer) -> None:
    """Raise ValueError unless the reward model's tokenizer decodes the last action to its text."""
    last = max(t for t, m in zip(segment.turn_ids, segment.loss_mask, strict=True) if m)
    rows = zip(segment.token_ids, segment.loss_mask, segment.turn_ids, strict=True)
    said = renderer.text([token for token, mask, turn in rows if mask and turn == last])
    action = episode.turns[last].action
    # The text that an environment sees ends before a stop string; the tokens may continue.
    if not said.startswith(action):
        raise ValueError(
            f"the reward model reads {said[:40]!r} where the policy said {action[:40]!r}: its "
            f"tokenizer must be the policy's (train it from the policy's model)"
        )
