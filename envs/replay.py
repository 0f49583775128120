"""``python -m envs.replay FILE``: recorded episodes play again to what they were.

An episode begins again with its options, task and seed, takes its actions, and has its tools
answered from the record. Observations, rewards, scores and the end must be the same: what differs
is said, and the exit code is 1. With ``--rubric`` the same actions are rewarded by another rubric.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TextIO, cast

from envs.datasets import DatasetUnavailable
from envs.env import TextEnv
from envs.episode import Action, StepResult, StopReason
from envs.record import RecordedCall, RecordedTool, Replayer
from envs.registration import env_type, make_from
from tools.registry import PluginImportError, UnknownNameError

ROLLOUT_STOPS = (StopReason.TOKEN_LIMIT, StopReason.CONTEXT_FULL)
"""Ends that no environment knows of."""
_LONGEST_SHOWN = 200


class Unreplayable(ValueError):
    """Raised by a record that no episode can be made of; says what it lacks."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """What is not as it was."""

    turn: int
    """The action, counted from 1, whose answer differs; 0: the beginning."""
    field: str
    recorded: Any
    now: Any

    def __str__(self) -> str:
        told = f"{_shown(self.recorded)}, now {_shown(self.now)}"
        return f"turn {self.turn}: {self.field}: recorded {told}"


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """An action, and what it led to."""

    action: str
    finish_reason: str | None
    observation: str
    rewards: Mapping[str, float]
    scores: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """An episode as ``rl.train`` and ``rl.eval`` write it, without its tokens."""

    env_id: str
    env_options: Mapping[str, Any]
    task: int
    seed: int
    observation: str
    turns: tuple[RecordedTurn, ...]
    calls: tuple[RecordedCall, ...]
    tools: Mapping[str, RecordedTool]
    terminated: bool
    stop_reason: str | None
    failure: str | None
    part: str
    """Of a mixture: whose episode it is. It is played without the mixture."""

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RecordedEpisode:
        """Read a line of a file of episodes.

        Raises:
            Unreplayable: it lacks something.
        """
        try:
            own = {field.name: record[field.name] for field in fields(cls)}
            own["turns"] = tuple(
                RecordedTurn(*(turn[field.name] for field in fields(RecordedTurn)))
                for turn in record["turns"]
            )
            own["calls"] = tuple(RecordedCall(**call) for call in record["calls"])
            own["tools"] = {name: RecordedTool(**said) for name, said in record["tools"].items()}
        except KeyError as error:
            raise Unreplayable(f"no episode that can be played again: it has no {error}") from error
        except (TypeError, AttributeError) as error:
            raise Unreplayable(f"no episode that can be played again: {error!r}") from error
        return cls(**own)

    @property
    def reward(self) -> float:
        """The return."""
        return sum(sum(turn.rewards.values()) for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Replayed:
    """An episode that was played again."""

    episode: RecordedEpisode
    steps: tuple[StepResult, ...]
    divergences: tuple[Divergence, ...]

    @property
    def reward(self) -> float:
        """The return as it is now."""
        return sum(step.reward for step in self.steps)


async def replay(
    episode: RecordedEpisode, env: TextEnv[Any, Any], *, rescored: bool = False
) -> Replayed:
    """Play an episode again.

    Args:
        episode: the record.
        env: of the record's id and options (:func:`env_of`); services that are no tools are its.
        rescored: whether ``env`` rewards something else: rewards and scores are not compared.
    """
    replayer = Replayer(episode.calls, episode.tools)
    env.tool_tap = replayer
    steps: list[StepResult] = []
    found: list[Divergence] = []
    try:
        first, _ = await env.areset(seed=episode.seed, options={"task": episode.task})
        _differ(found, 0, {"observation": (episode.observation, first)})
        for replayer.turn, turn in enumerate(episode.turns, start=1):
            # What follows a difference differs, too.
            if found:
                break
            result = await env.astep(Action(turn.action, turn.finish_reason))
            steps.append(result)
            last = replayer.turn == len(episode.turns)
            compared = _compared(turn, result, _end(episode) if last else None)
            if episode.part:
                _without_success(compared)
            if rescored:
                compared = {k: v for k, v in compared.items() if k not in ("rewards", "scores")}
            _differ(found, replayer.turn, compared)
    # An environment may raise anything, and a tool without an answer becomes its failure.
    except Exception as error:
        now = f"{type(error).__name__}: {error}"
        asked = replayer.unheard[0] if replayer.unheard else now
        field = "tool call" if replayer.unheard else "failure"
        found.append(Divergence(replayer.turn, field, None, asked))
    if not found and replayer.left:
        call = replayer.left[0]
        made = f"{call.service} {json.dumps(call.arguments, ensure_ascii=False)}"
        found.append(Divergence(call.turn, "tool call", made, None))
    return Replayed(episode, tuple(steps), tuple(found))


def env_of(episode: RecordedEpisode, rubric: str = "") -> TextEnv[Any, Any]:
    """The environment of an episode, or the same that is rewarded by another rubric.

    Raises:
        Unreplayable: it is not installed, has other options, or takes no rubric.
    """
    try:
        kind = env_type(episode.env_id).Options
        known = {field.name for field in fields(kind)}
        if unknown := sorted(set(episode.env_options) - known):
            raise Unreplayable(f"there is no option {unknown[0]!r} (any more)")
        if rubric and "rubric" not in known:
            raise Unreplayable("there is no option 'rubric': its rewards are its own")
        options = kind(**episode.env_options)
        if rubric:
            options = replace(cast(Any, options), rubric=rubric)
        return make_from(episode.env_id, options)
    except (UnknownNameError, PluginImportError, DatasetUnavailable, ValueError) as error:
        raise Unreplayable(f"{episode.env_id}: {error}") from error


def _end(episode: RecordedEpisode) -> tuple[bool, str | None]:
    """How the environment ended the episode; it did not where the rollout cut it."""
    cut = episode.stop_reason
    return episode.terminated, None if cut in ROLLOUT_STOPS else cut


def _compared(
    turn: RecordedTurn, now: StepResult, end: tuple[bool, str | None] | None
) -> dict[str, tuple[Any, Any]]:
    """Every field of a turn as it was and as it is."""
    reason = now.info["stop_reason"]
    ended, stop_reason = end or (False, None)
    return {
        "observation": (turn.observation, now.observation),
        "rewards": (dict(turn.rewards), _floats(now.info["rewards"])),
        "scores": (dict(turn.scores), _floats(now.info["scores"])),
        "terminated": (ended, now.terminated),
        "stop_reason": (stop_reason, None if reason is None else str(reason)),
    }


def _without_success(compared: dict[str, tuple[Any, Any]]) -> None:
    """Leave the score out that a mixture adds to its parts' own."""
    recorded, now = compared["scores"]
    kept = [{k: v for k, v in scores.items() if k != "success"} for scores in (recorded, now)]
    compared["scores"] = (kept[0], kept[1])


def _floats(values: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in values.items()}


def _differ(found: list[Divergence], turn: int, compared: Mapping[str, tuple[Any, Any]]) -> None:
    for field, (recorded, now) in compared.items():
        if recorded != now:
            found.append(Divergence(turn, field, recorded, now))


def _shown(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}..."


# ---- the command ---------------------------------------------------------------------------


class _Stages:
    """One environment for each id and set of options; its copies share the services it opens."""

    def __init__(self, rubric: str) -> None:
        self._rubric = rubric
        self._made: dict[str, TextEnv[Any, Any]] = {}

    async def play(self, episode: RecordedEpisode) -> Replayed:
        key = json.dumps([episode.env_id, episode.env_options], sort_keys=True)
        if key not in self._made:
            self._made[key] = env_of(episode, self._rubric)
        [env] = self._made[key].group(1)
        try:
            return await replay(episode, env, rescored=bool(self._rubric))
        finally:
            await env.aclose()

    async def close(self) -> None:
        for env in self._made.values():
            await env.aclose()


def read_episodes(path: Path) -> Iterator[tuple[int, RecordedEpisode]]:
    """The episodes of a ``.jsonl`` or ``.jsonl.gz`` file, with the lines they stand on.

    Raises:
        Unreplayable: a line is none; names it.
        OSError: the file cannot be read.
    """
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield number, RecordedEpisode.from_json(json.loads(line))
            except ValueError as error:
                raise Unreplayable(f"{path}, line {number}: {error}") from error


async def replay_file(path: Path, rubric: str, limit: int | None, out: TextIO) -> int:
    """Play a file's episodes again and write what differs; returns how many do.

    Raises:
        Unreplayable: as for :func:`read_episodes` and :func:`env_of`.
        OSError: the file cannot be read.
    """
    stages, differ, failed = _Stages(rubric), 0, 0
    returns: list[tuple[float, float]] = []
    try:
        for number, episode in read_episodes(path):
            if limit is not None and number > limit:
                break
            if episode.failure is not None:
                failed += 1
                continue
            try:
                played = await stages.play(episode)
            except Unreplayable as error:
                raise Unreplayable(f"{path}, line {number}: {error}") from error
            where = f"line {number}, {episode.env_id} task {episode.task}"
            for divergence in played.divergences:
                out.write(f"{where}: {divergence}\n")
            if played.divergences:
                differ += 1
                continue
            returns.append((episode.reward, played.reward))
            if rubric:
                out.write(f"{where}: {episode.reward:g} recorded, {played.reward:g} now\n")
    finally:
        await stages.close()
    same = f"{len(returns)} as recorded, {differ} not"
    out.write(f"{len(returns) + differ} episodes: {same}; {failed} failed and were not played\n")
    if rubric and returns:
        old, new = (sum(column) / len(returns) for column in zip(*returns, strict=True))
        out.write(f"mean return: {old:.4f} recorded, {new:.4f} by {rubric}\n")
    return differ


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 0, 1 if anything differs, 2 if it cannot be told."""
    parser = argparse.ArgumentParser(prog="python -m envs.replay", description=__doc__)
    parser.add_argument("file", type=Path, help="episodes of rl.train or rl.eval: .jsonl(.gz)")
    parser.add_argument("--rubric", default="", help="reward the same actions by this instead")
    parser.add_argument("--limit", type=int, help="play only so many lines")
    words = parser.parse_args(argv)
    try:
        differ = asyncio.run(replay_file(words.file, words.rubric, words.limit, sys.stdout))
    except (Unreplayable, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
