"""``python killed_runs.py KIND INSTANT ... -- WORDS``: runs that are killed, and resumed.

For each INSTANT a process begins ``rl.train WORDS out=OUT/INSTANT``; it is killed just before it
changes a file for the INSTANT-th time (KIND=change), or after INSTANT seconds (KIND=second).
Another one goes on with it to the end. Writes a line of JSON for each. Processes are forked from
this one, which has everything imported: none takes the seconds to start.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import matplotlib.figure
import toy_envs
import transformers.models.auto.tokenization_auto
import transformers.models.qwen3.modeling_qwen3

import rl.run.curve
import rl.run.display
import rl.trainer
from rl.train import main

assert all((matplotlib, transformers, rl)), "what a run imports only when it needs it"

CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")


def die_before_change(number: int) -> None:
    """Have this process killed just before it changes a file for the ``number``-th time."""
    left = number

    def hook(event: str, arguments: tuple) -> None:
        nonlocal left
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & 0o3
        if writes or event in CHANGES:
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def die_after(seconds: float) -> None:
    """Have this process killed after a time, in the middle of whatever it does."""
    # What the system does with this signal where nobody asks otherwise.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def child(words: list[str], prepare: Callable[[], None] | None = None) -> int:
    """Train in a process of its own; its exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        toy_envs.register()
        if prepare is not None:
            prepare()
        code = 1
        try:
            code = main(words)
        finally:
            sys.stdout.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


if __name__ == "__main__":
    split = sys.argv.index("--")
    kind, *instants = sys.argv[1:split]
    words = [word for word in sys.argv[split + 1 :] if not word.startswith("out=")]
    out = next(word[4:] for word in sys.argv[split + 1 :] if word.startswith("out="))
    answers, sys.stdout = sys.stdout, sys.stderr
    for instant in instants:
        folder = Path(out) / instant
        here = [*words, f"out={folder}"]
        began = time.monotonic()
        if kind == "change":
            ended = child(here, lambda n=int(instant): die_before_change(n))
        else:
            ended = child(here, lambda s=float(instant): die_after(s))
        told = {"out": str(folder), "killed": ended, "seconds": time.monotonic() - began}
        told["resumed"] = child([*here, "resume=auto"])
        answers.write(json.dumps(told) + "\n")
        answers.flush()
