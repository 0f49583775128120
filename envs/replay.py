"""``python -m envs.replay FILE``: replay recorded episodes and report differences.

A replay starts an episode with its options, task and seed, and takes the recorded actions. Tools
answer from the record. Observations, rewards, scores and the end must equal the recorded ones. The
command reports each difference, and exits with code 1 if there is any. With ``--rubric``, another
rubric rewards the same actions.
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
"""Stop reasons that the rollout sets; environments set the others."""
_LONGEST_SHOWN = 200


class Unreplayable(ValueError):
    """Raised for a record that cannot be replayed; the message states what is missing."""


@dataclass(frozen=True, slots=True)
class Divergence:
    """A difference between an episode and its replay."""

    turn: int
    """Number of the action whose result differs, counted from 1; 0 means the reset."""
    field: str
    recorded: Any
    now: Any

    def __str__(self) -> str:
        values = f"recorded {_shown(self.recorded)}, now {_shown(self.now)}"
        return f"turn {self.turn}: {self.field}: {values}"


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """An action and its result."""

    action: str
    finish_reason: str | None
    observation: str
    rewards: Mapping[str, float]
    scores: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RecordedEpisode:
    """An episode without its tokens, from a file that ``rl.train`` or ``rl.eval`` wrote."""

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
    """In a mixture, the part that was played. The replay uses the part's environment alone."""

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RecordedEpisode:
        """The episode that one line of a file records.

        Raises:
            Unreplayable: a field is missing or malformed.
        """
        try:
            own = {field.name: record[field.name] for field in fields(cls)}
            own["turns"] = tuple(
                RecordedTurn(*(turn[field.name] for field in fields(RecordedTurn)))
                for turn in record["turns"]
            )
            own["calls"] = tuple(RecordedCall(**call) for call in record["calls"])
            own["tools"] = {name: RecordedTool(**tool) for name, tool in record["tools"].items()}
        except KeyError as error:
            raise Unreplayable(f"not a record of an episode: it has no {error}") from error
        except (TypeError, AttributeError) as error:
            raise Unreplayable(f"not a record of an episode: {error!r}") from error
        return cls(**own)

    @property
    def reward(self) -> float:
        """The recorded return."""
        return sum(sum(turn.rewards.values()) for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Replayed:
    """An episode and its replay."""

    episode: RecordedEpisode
    steps: tuple[StepResult, ...]
    divergences: tuple[Divergence, ...]

    @property
    def reward(self) -> float:
        """The return of the replay."""
        return sum(step.reward for step in self.steps)


async def replay(
    episode: RecordedEpisode, env: TextEnv[Any, Any], *, rescored: bool = False
) -> Replayed:
    """Replay an episode.

    Args:
        episode: the record.
        env: an environment with the record's id and options, see :func:`env_of`. It provides the
            services that are not tools.
        rescored: whether ``env`` has another rubric. If so, rewards and scores are not compared.
    """
    replayer = Replayer(episode.calls, episode.tools)
    env.tool_tap = replayer
    steps: list[StepResult] = []
    found: list[Divergence] = []
    try:
        first, _ = await env.areset(seed=episode.seed, options={"task": episode.task})
        _differ(found, 0, {"observation": (episode.observation, first)})
        for replayer.turn, turn in enumerate(episode.turns, start=1):
            # After the first difference, everything differs.
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
    # An environment may raise anything; a tool call without a recorded result makes it fail.
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
        now = replayer.unknown[0] if replayer.unknown else failure
        field = "tool call" if replayer.unknown else "failure"
        found.append(Divergence(replayer.turn, field, None, now))
    if not found and replayer.left:
        call = replayer.left[0]
        made = f"{call.service} {json.dumps(call.arguments, ensure_ascii=False)}"
        found.append(Divergence(call.turn, "tool call", made, None))
    return Replayed(episode, tuple(steps), tuple(found))


def env_of(episode: RecordedEpisode, rubric: str = "") -> TextEnv[Any, Any]:
    """The environment of an episode, with another rubric if one is named.

    Raises:
        Unreplayable: the environment is not installed, has other options, or takes no rubric.
    """
    try:
        kind = env_type(episode.env_id).Options
        known = {field.name for field in fields(kind)}
        if unknown := sorted(set(episode.env_options) - known):
            raise Unreplayable(f"the environment has no option {unknown[0]!r} (any more)")
        if rubric and "rubric" not in known:
            raise Unreplayable("the environment has no option 'rubric'")
        options = kind(**episode.env_options)
        if rubric:
            options = replace(cast(Any, options), rubric=rubric)
        return make_from(episode.env_id, options)
    except (UnknownNameError, PluginImportError, DatasetUnavailable, ValueError) as error:
        raise Unreplayable(f"{episode.env_id}: {error}") from error


def _end(episode: RecordedEpisode) -> tuple[bool, str | None]:
    """Whether the environment terminated the episode, and why the environment truncated it.

    The reason is None if the rollout truncated the episode.
    """
    cut = episode.stop_reason
    return episode.terminated, None if cut in ROLLOUT_STOPS else cut


def _compared(
    turn: RecordedTurn, now: StepResult, end: tuple[bool, str | None] | None
) -> dict[str, tuple[Any, Any]]:
    """The fields of a turn, each as a pair of the recorded and the replayed value."""
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
    """Remove the score that a mixture adds to its part's scores."""
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


class _Environments:
    """One environment for each id and options. Episodes use copies, which share its services."""

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
    """The line numbers and episodes of a ``.jsonl`` or ``.jsonl.gz`` file.

    Raises:
        Unreplayable: a line is not a record of an episode; the message names the line.
        OSError: the file cannot be read.
    """
    with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                yield number, RecordedEpisode.from_json(json.loads(line))
            except ValueError as error:
                raise Unreplayable(f"{path}, line {number}: {error}") from error


async def replay_file(path: Path, rubric: str, limit: int | None, out: TextIO) -> int:
    """Replay a file's episodes, write the differences and return the number of differing episodes.

    Raises:
        Unreplayable: as for :func:`read_episodes` and :func:`env_of`.
        OSError: the file cannot be read.
    """
    environments, differ, failed = _Environments(rubric), 0, 0
    returns: list[tuple[float, float]] = []
    try:
        for number, episode in read_episodes(path):
            if limit is not None and number > limit:
                break
            if episode.failure is not None:
                failed += 1
                continue
            try:
                played = await environments.play(episode)
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
        await environments.close()
    same = f"{len(returns)} as recorded, {differ} not"
    out.write(f"{len(returns) + differ} episodes: {same}; {failed} failed and were not played\n")
    if rubric and returns:
        old, new = (sum(column) / len(returns) for column in zip(*returns, strict=True))
        out.write(f"mean return: {old:.4f} recorded, {new:.4f} by {rubric}\n")
    return differ


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Returns the exit code: 0 without differences, 1 with differences, 2 after an error.
    """
    parser = argparse.ArgumentParser(prog="python -m envs.replay", description=__doc__)
    parser.add_argument("file", type=Path, help="episodes of rl.train or rl.eval: .jsonl(.gz)")
    parser.add_argument("--rubric", default="", help="reward the same actions by this rubric")
    parser.add_argument("--limit", type=int, help="replay only the first LIMIT lines")
    words = parser.parse_args(argv)
    try:
        differ = asyncio.run(replay_file(words.file, words.rubric, words.limit, sys.stdout))
    except (Unreplayable, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
