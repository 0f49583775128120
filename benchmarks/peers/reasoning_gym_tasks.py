"""reasoning-gym: its data sets and their scorers."""

from __future__ import annotations

import random
import re
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import metadata
from pathlib import Path

import reasoning_gym
from report import Finding, main, probe

EVALUATING = ("n_queens", "spiral_matrix", "binary_matrix", "string_insertion", "countdown")


@probe(3)
def seeds():
    def questions(_):
        random.random()
        data = reasoning_gym.create_dataset("knights_knaves", size=20, seed=7)
        return tuple(entry["question"] for entry in data)

    with ThreadPoolExecutor(8) as threads:
        different = len(set(threads.map(questions, range(16))))
    return Finding(different > 1, f"16 times in 8 threads with one seed: {different} set of tasks")


@probe(13)
def readme():
    text = metadata("reasoning-gym").get_payload()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[:1]
    try:
        exec(compile(code, "README", "exec"), {})
    except SyntaxError as error:
        here = f"{sys.version_info.major}.{sys.version_info.minor}"
        saw = f"under Python {here}, which it supports, the first example is a SyntaxError"
        return Finding(True, f"{saw} ({error.msg}); from 3.12 on it is none")
    return Finding(False, "the first example runs")


@probe(14)
def scorers():
    ran = []
    with tempfile.TemporaryDirectory() as folder:
        for name in EVALUATING:
            mark = Path(folder) / name
            data = reasoning_gym.create_dataset(name, size=1, seed=1)
            data.score_answer(f"__import__('os').mkdir({str(mark)!r})", data[0])
            if mark.exists():
                ran.append(name)
    return Finding(bool(ran), f"answers that scorers ran as Python in their process: {ran}")


main("reasoning-gym")
