"""``python killed_runs.py KIND INSTANT ... -- WORDS``: kill runs and resume them.

For each INSTANT a process starts ``rl.train WORDS out=OUT/INSTANT``. It is killed just before it
changes a file for the INSTANT-th time (KIND=change), or after INSTANT seconds (KIND=second).
Another process resumes the run to its end. Each prints one line of JSON. Processes are forks of
this one, which has imported all modules, so that they start at once.
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
import rl.run.screen
import rl.run.trainer
from rl.train import main

assert all((matplotlib, transformers, rl)), "what a run imports only when it needs it"

CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate")


def die_before_change(number: int) -> None:
    """Kill this process just before it changes a file for the ``number``-th time."""
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
    """Kill this process after the given time."""
    # The default action of this signal.
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)


def child(
    words: list[str], prepare: Callable[[], None] | None = None, command: Callable = main
) -> int:
    """Run a command in a child process; return its exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        toy_envs.register()
        if prepare is not None:
            prepare()
        code = 1
        try:
            code = command(words)
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
        answer = {"out": str(folder), "killed": ended, "seconds": time.monotonic() - began}
        answer["resumed"] = child([*here, "resume=auto"])
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
