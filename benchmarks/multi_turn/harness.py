"""Runs a trainer: its budget, its memory, its tokens, and the checkpoints that it hands in.

The harness counts seconds by its own clock, and tokens from the endpoint's answers to the agent. A
trainer reports neither.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .games import LEDGER
from .job import POINTS, Job

POLL_S = 0.2
GRACE_S = 120.0
"""Seconds that a trainer may take to end after its budget is spent."""
FIRST_POINT_S = 3600.0
"""Seconds after which a trainer without a budget in seconds is ended."""


@dataclass(frozen=True)
class Point:
    """A checkpoint, with what was spent until it was handed in."""

    model: str
    seconds: float
    tokens: int
    episodes: int


@dataclass
class Training:
    """What one training spent and handed in."""

    seconds: float = 0.0
    tokens: int = 0
    episodes: int = 0
    peak_mib: float = 0.0
    """Peak of the memory of the trainer's processes: proportional set sizes, summed."""
    peak_gpu_mib: float = 0.0
    """Peak of the used memory of all GPUs; 0 without a GPU."""
    exit_code: int = 0
    points: list[Point] = field(default_factory=list)


def train(command: Sequence[str], job: Job) -> Training:
    """Run a trainer on a job, until it ends or its budget is spent.

    Raises:
        RuntimeError: the trainer failed, or handed in nothing.
    """
    out = Path(job.out)
    out.mkdir(parents=True)
    file, ledger, log = out / "job.json", out / "ledger.jsonl", out / "trainer.log"
    job.write(file)
    ledger.touch()
    environment = os.environ | {LEDGER: str(ledger), "OMP_NUM_THREADS": str(job.threads)}
    done = Training()
    with log.open("wb") as output:
        started = time.monotonic()
        process = subprocess.Popen(
            [*command, str(file)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=environment,
            start_new_session=True,
        )
        try:
            _watch(process, job, done, started)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    _count(job, done, time.monotonic() - started)
    done.exit_code = process.returncode
    if not done.points:
        tail = log.read_text(encoding="utf-8", errors="replace")[-2000:]
        raise RuntimeError(f"the trainer ended with {done.exit_code} and handed in nothing: {tail}")
    return done


def _watch(process: subprocess.Popen[bytes], job: Job, done: Training, started: float) -> None:
    """Follow the trainer until its end; interrupt it when the budget is spent."""
    interrupted_at = None
    while process.poll() is None:
        time.sleep(POLL_S)
        seconds = time.monotonic() - started
        done.peak_mib = max(done.peak_mib, _memory_mib(process.pid))
        done.peak_gpu_mib = max(done.peak_gpu_mib, _gpu_mib())
        if interrupted_at is None:
            _count(job, done, seconds)
            if _is_spent(job, done):
                interrupted_at = seconds
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGINT)
        elif seconds - interrupted_at > GRACE_S:
            return


def _is_spent(job: Job, done: Training) -> bool:
    seconds = job.seconds or FIRST_POINT_S
    return done.seconds >= seconds or 0 < job.tokens <= done.tokens


def _count(job: Job, done: Training, seconds: float) -> None:
    """Count what was spent so far, and the new points within the budget."""
    if _is_spent(job, done):
        return
    episodes = _lines(Path(job.out) / "ledger.jsonl")
    done.seconds = seconds
    done.episodes = len(episodes)
    done.tokens = sum(episode["completion_tokens"] for episode in episodes)
    for line in _lines(Path(job.out) / POINTS)[len(done.points) :]:
        done.points.append(Point(line["model"], seconds, done.tokens, done.episodes))


def _lines(path: Path) -> list[dict]:
    """The complete lines of a JSON lines file."""
    if not path.is_file():
        return []
    text = path.read_text(encoding="utf-8")
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def _memory_mib(leader: int) -> float:
    """The proportional set size of all processes of a session, in MiB."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[3]) != leader:
                continue
            lines = (stat.parent / "smaps_rollup").read_text().splitlines()
        except OSError:
            # The process ended meanwhile.
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def _gpu_mib() -> float:
    """The used memory of all GPUs in MiB, or 0 without NVIDIA's driver."""
    if shutil.which("nvidia-smi") is None:
        return 0.0
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    return sum(float(line) for line in done.stdout.split())
