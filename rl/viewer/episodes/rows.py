"""The row of an episode: what the list of episodes shows, filters and sorts by, and its texts."""

from __future__ import annotations

import gzip
import json
import re
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.completion import FinishReason
from rl.errors import UsageError
from rl.rollout.trajectory_files import FORMAT, LINES, tokens_path

FINISHED, FAILED, CUT = "finished", "failed", "cut"
"""Endings of episodes that were not truncated. A truncated episode's ending is its stop reason."""
KINDS = ("train", "validation", "test before", "test after")
_NAME = re.compile(r"(?:(step|validation)-(\d+)|test-(before|after))\.jsonl\.gz")
_PREVIEW = 160
DAMAGED_NUMBERS = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    zlib.error,
    zipfile.BadZipFile,
)
"""Errors of reading a damaged file of the learner's numbers."""


class EpisodeFile(NamedTuple):
    """A file of episodes in a run's ``trajectories``."""

    path: Path
    kind: str
    """One of :data:`KINDS`."""
    step: int
    """The step of training episodes, or the step after which the others were played. -1 if the
    name has no step."""

    @property
    def name(self) -> str:
        """The name without its ending, by which links identify the file."""
        return self.path.name.removesuffix(LINES)

    @property
    def learner_path(self) -> Path:
        """The file with the learner's numbers for each token. It may not exist."""
        return self.path.with_name(f"{self.name}.learner.npz")

    def signature(self) -> str:
        """A text that changes when the file or the learner's file is written."""
        found = []
        for path in (self.path, self.learner_path):
            if path.exists():
                stat = path.stat()
                found.append(f"{stat.st_mtime_ns}-{stat.st_size}")
        return " ".join(found)


def episode_file(path: Path) -> EpisodeFile | None:
    """The file of episodes at ``path``, or None if the name is not of such a file."""
    found = _NAME.fullmatch(path.name)
    if found is None:
        return None
    name, step, when = found.groups()
    if when is not None:
        return EpisodeFile(path, f"test {when}", -1)
    return EpisodeFile(path, "train" if name == "step" else name, int(step))


class Row(NamedTuple):
    """One episode in the list of episodes; the columns of the index."""

    file: str
    """Name of the file without its ending."""
    line: int
    """Number of the episode in its file, from 0."""
    kind: str
    step: int
    grp: int
    """Number of the episode's group in its file, from 0."""
    member: int
    task: int
    env: str
    reward: float
    shaped: float
    """The return from which advantages are computed."""
    outcome: float | None
    advantage: float | None
    """The mean advantage of the trained tokens, if the run recorded advantages."""
    ending: str
    failure: str
    """The type of the infrastructure failure, or ""."""
    attempts: int
    turns: int
    tokens: int
    sampled: int
    calls: int
    call_errors: int
    generate_s: float
    env_s: float
    question: str
    """The start of the first observation."""
    answer: str
    """The start of the last action."""
    byte: int
    """Offset of the episode's line in the uncompressed file."""
    token: int
    """Offset of the episode's first token in the table of tokens, or -1 if the line has tokens."""


def read_rows(file: EpisodeFile, advantages: NDArray[np.float32]) -> Iterator[tuple[Row, str]]:
    """The rows of a file's episodes, and the text of each episode for the search.

    Args:
        file: the file.
        advantages: the advantage of each token, or an empty array.

    Raises:
        UsageError: the file is damaged, or a newer version wrote it.
        OSError: the file cannot be read.
    """
    byte = token = 0
    group = -1
    with gzip.open(file.path, "rb") as lines:
        for number, line in enumerate(lines):
            record = read_record(line, file.path)
            sizes = [_num_tokens(segment) for segment in record["segments"]]
            group += record["member"] == 0 or group < 0
            held = record["segments"] and "token_ids" in record["segments"][0]
            row = _row(file, record)._replace(
                line=number,
                grp=group,
                tokens=sum(sizes),
                byte=byte,
                token=-1 if held else token,
                advantage=_mean(advantages[token : token + sum(sizes)]),
            )
            yield row, search_text(record)
            byte += len(line)
            token += sum(sizes)


def read_record(line: bytes, path: Path) -> dict[str, Any]:
    """The record of an episode's line.

    Raises:
        UsageError: the line holds no episode, or a newer version wrote it.
    """
    try:
        record: dict[str, Any] = json.loads(line)
        if record.get("format", 1) > FORMAT:
            raise UsageError(
                f"{path} has format {record['format']}, this turnwise reads formats up to {FORMAT}"
            )
        record["segments"], record["turns"]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{path} holds a line that is no episode: {error!r}") from error
    return record


def ending_of(record: Mapping[str, Any]) -> str:
    """How an episode ended: failed, its stop reason, cut if the last answer was, or finished."""
    if record.get("failure"):
        return FAILED
    stopped: str | None = record.get("stop_reason")
    if stopped:
        return stopped
    turns = record.get("turns")
    ends = (FinishReason.LENGTH, FinishReason.CONTEXT_FULL)
    return CUT if turns and turns[-1].get("finish_reason") in ends else FINISHED


def reward_of(record: Mapping[str, Any]) -> float:
    """The undiscounted return of an episode."""
    return float(sum(sum(turn.get("rewards", {}).values()) for turn in record["turns"]))


def shaped_reward_of(record: Mapping[str, Any]) -> float:
    """The return from which advantages are computed."""
    weight = float(record.get("reward_weight", 1.0))
    return weight * reward_of(record) + float(sum(record.get("shaping", {}).values()))


def search_text(record: Mapping[str, Any]) -> str:
    """All texts of an episode in lower case, for the search."""
    texts = [record.get("system"), record.get("observation"), record.get("failure")]
    for turn in record["turns"]:
        texts += [turn["action"], turn["observation"]]
        for call in turn.get("tool_calls", ()):
            arguments = json.dumps(call["arguments"], ensure_ascii=False, default=str)
            texts += [call["name"], arguments, call["text"], call.get("error")]
    return storable("\n".join(str(text) for text in texts if text)).lower()


def storable(text: str) -> str:
    """``text`` without lone surrogates and NUL characters, which SQLite's functions cannot hold."""
    return text.encode("utf-8", "replace").decode("utf-8").replace("\0", "\N{SYMBOL FOR NULL}")


def _row(file: EpisodeFile, record: Mapping[str, Any]) -> Row:
    turns: Sequence[Mapping[str, Any]] = record["turns"]
    calls = [call for turn in turns for call in turn.get("tool_calls", ())]
    failure = str(record.get("failure") or "")
    return Row(
        file=file.name,
        line=0,
        kind=file.kind,
        step=file.step,
        grp=0,
        member=record["member"],
        task=record["task"],
        env=storable(record.get("part") or record["env_id"]),
        reward=reward_of(record),
        shaped=shaped_reward_of(record),
        outcome=record.get("outcome"),
        advantage=None,
        ending=storable(ending_of(record)),
        failure=storable(failure.split(":")[0]),
        attempts=record.get("attempts", 1),
        turns=len(turns),
        tokens=0,
        sampled=sum(turn["num_tokens"] for turn in turns),
        calls=len(calls),
        call_errors=sum(1 for call in calls if call.get("error")),
        generate_s=sum(turn.get("generate_s", 0.0) for turn in turns),
        env_s=sum(turn.get("env_s", 0.0) for turn in turns),
        question=storable(str(record.get("observation") or "")[:_PREVIEW]),
        answer=storable(str(turns[-1]["action"])[:_PREVIEW] if turns else ""),
        byte=0,
        token=0,
    )


def _num_tokens(segment: Mapping[str, Any]) -> int:
    return len(segment["token_ids"]) if "token_ids" in segment else int(segment["num_tokens"])


def read_advantages(file: EpisodeFile) -> tuple[NDArray[np.float32], str | None]:
    """The advantage of each token of a file, and why they cannot be read, or None.

    The array is empty if the run recorded none, or if the learner's file is damaged.
    """
    nothing = np.empty(0, np.float32)
    if not file.learner_path.exists() or not tokens_path(file.path).exists():
        return nothing, None
    if not zipfile.is_zipfile(file.learner_path):
        # numpy would advise to load the file unsafely.
        return nothing, without_numbers(file, ValueError("File is not a zip file"))
    try:
        with file.learner_path.open("rb") as raw, np.load(raw, allow_pickle=False) as archive:
            found = archive["advantages"] if "advantages" in archive.files else nothing
    except DAMAGED_NUMBERS as error:
        return nothing, without_numbers(file, error)
    if found.ndim != 1 or not np.issubdtype(found.dtype, np.floating):
        wrong = f"its advantages have the shape {found.shape} and the type {found.dtype}"
        return nothing, without_numbers(file, ValueError(wrong))
    return found, None


def without_numbers(file: EpisodeFile, error: Exception) -> str:
    """The line about episodes that are shown without the learner's numbers."""
    return (
        f"{file.learner_path} is damaged ({error}): its episodes are shown without advantages, "
        "ratios and entropies"
    )


def _mean(values: NDArray[np.float32]) -> float | None:
    known = values[np.isfinite(values)]
    return float(known.mean(dtype=np.float64)) if len(known) else None
