"""Retrieval, compared with other libraries: recall on HotpotQA, latency, opening, transport.

    python -m benchmarks.environments.retrieval [--hotpotqa FILE] [--passages 100000] [--out FILE]

- hotpotqa: recall@5 of gold titles over the rows' own paragraphs, by turnwise and by bm25s called
  directly on the same words; the F1 of the gold policy in each syntax. Needs ``--hotpotqa FILE``.
- latency: single queries against 100,000 generated passages of 100 words. turnwise returns the
  passages, bm25s their numbers. The two alternate.
- opening: seconds, and the anonymous memory that opening and 100 queries add, in a new process.
- transport: 256 concurrent searches over HTTP for some seconds, against our server in its own
  process over 100 passages, compared with httpx. A busy machine lowers the rates; the client's CPU
  time per search gives the maximum for one core.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import fmean, median

import bm25s
import httpx
import numpy as np

import envs
from envs.play import play
from envs.search.protocol import PROTOCOLS
from envs.search.rows import load_questions
from tools.retrieval import BM25, HttpRetriever, Passage, index_passages
from tools.retrieval.tokenizer import tokenize
from tools.retrieval.wire import SEARCH_R1

VOCABULARY, WORDS_PER_PASSAGE, CONCURRENT = 100_000, 100, 256


def generated(count: int) -> Iterator[Passage]:
    """Passages whose words are as unevenly common as a language's."""
    rng = np.random.default_rng(0)
    for number in range(count):
        ranks = rng.zipf(1.15, size=WORDS_PER_PASSAGE) % VOCABULARY
        yield Passage(str(number), " ".join(f"w{rank}" for rank in ranks), f"w{ranks[0]}")


def asked(count: int) -> list[str]:
    """Queries of two to eight words, common and rare."""
    rng = np.random.default_rng(1)
    sizes = rng.integers(2, 9, size=count)
    return [" ".join(f"w{r}" for r in rng.zipf(1.15, size=n) % VOCABULARY) for n in sizes]


def hotpotqa(path: str) -> dict[str, object]:
    """Recall of gold titles in three ways, and the gold policy's F1."""
    questions = load_questions(path)
    passages = list(questions.passages)
    tasks = questions.data.tasks
    direct = bm25s.BM25(method="bm25+", k1=1.5, b=0.75, delta=1.0, backend="numpy")
    direct.index([tokenize(f"{p.title} {p.text}") for p in passages], show_progress=False)

    def by_bm25s(question: str) -> list[str]:
        words = [word for word in tokenize(question) if word in direct.vocab_dict]
        numbers, _ = direct.retrieve([words], k=5, show_progress=False)
        return [passages[int(number)].title for number in numbers[0]]

    with tempfile.TemporaryDirectory() as folder:
        index_passages(iter(passages), folder)
        library = BM25(folder)
        ways = {
            "ours": lambda question: [p.title for p in library.find(question, 5)],
            "bm25s": by_bm25s,
        }
        recall = {
            name: fmean(
                len(set(task.titles) & set(find(task.question))) / len(task.titles)
                for task in tasks
            )
            for name, find in ways.items()
        }
    f1 = {syntax: fmean(_gold_f1(path, syntax)) for syntax in PROTOCOLS}
    return {"questions": len(tasks), "passages": len(passages), "recall_at_5": recall, "f1": f1}


def _gold_f1(path: str, syntax: str) -> Iterator[float]:
    for split in load_questions(path).data.splits:
        env = envs.make("search-qa", tasks=path, split=split, syntax=syntax, top_n=5)
        for task in range(len(env.tasks)):
            yield play(env, env.gold_policy(), task=task).steps[-1].info["scores"]["f1"]
        env.close()


def latency(folder: Path, queries: list[str], rounds: int) -> dict[str, float]:
    """Milliseconds for the best five, ours and bm25s's, turn by turn."""
    library, direct = BM25(folder), bm25s.BM25.load(folder, mmap=True)

    def by_bm25s(query: str) -> None:
        words = [word for word in tokenize(query) if word in direct.vocab_dict]
        direct.retrieve([words], k=5, show_progress=False)

    seconds: dict[str, list[float]] = {"ours": [], "bm25s": []}
    for _ in range(rounds):
        for query in queries:
            for name, find in (("bm25s", by_bm25s), ("ours", lambda q: library.find(q, 5))):
                started = time.perf_counter()
                find(query)
                seconds[name].append(time.perf_counter() - started)
    ours, theirs = (median(seconds[name]) * 1000 for name in ("ours", "bm25s"))
    return {"ours_ms": ours, "bm25s_ms": theirs, "ratio": ours / theirs}


OPENING = """
import json, re, sys, time
from pathlib import Path
import bm25s  # its import is no part of opening an index
from tools.retrieval import BM25

def anonymous():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

before, started = anonymous(), time.perf_counter()
library = BM25(sys.argv[1])
opened_ms = (time.perf_counter() - started) * 1000
after = anonymous()
for query in json.load(sys.stdin):
    library.find(query, 5)
print(json.dumps({"open_ms": opened_ms, "open_bytes": after - before,
                  "queried_bytes": anonymous() - before}))
"""


def opening(folder: Path, queries: list[str], rounds: int) -> dict[str, float]:
    """Median seconds to open an index in new processes."""
    size = sum(file.stat().st_size for file in folder.iterdir())
    runs = []
    for _ in range(rounds):
        done = subprocess.run(
            [sys.executable, "-c", OPENING, str(folder)],
            input=json.dumps(queries[:100]),
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
        runs.append(json.loads(done.stdout))
    found = {name: median(run[name] for run in runs) for name in runs[0]}
    share = found["queried_bytes"] / size
    return {**found, "index_bytes": size, "private_share_after_queries": share}


async def rate(search: Callable[[], Awaitable[object]], seconds: float) -> tuple[float, float]:
    """Calls per second with concurrent callers, and CPU milliseconds per call in this process."""
    count, over = 0, time.perf_counter() + seconds

    async def one() -> None:
        nonlocal count
        while time.perf_counter() < over:
            await search()
            count += 1

    started, used = time.perf_counter(), time.process_time()
    await asyncio.gather(*(one() for _ in range(CONCURRENT)))
    cpu_ms = 1000 * (time.process_time() - used) / count
    return count / (time.perf_counter() - started), cpu_ms


async def transport(seconds: float) -> dict[str, float]:
    """Requests per second of our client and of httpx, against our server."""
    with tempfile.TemporaryDirectory() as folder:
        index_passages(generated(100), folder)
        words = [sys.executable, "-m", "tools.retrieval", "serve", folder, "--port", "0"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            address = re.findall(r"http://\S+", server.stdout.readline())[0]
            try:
                async with HttpRetriever(address) as remote:
                    ours = await rate(lambda: remote.search(["w1 w2"], 3), seconds)
                body = SEARCH_R1.ask(["w1 w2"], 3)
                limits = httpx.Limits(max_connections=CONCURRENT)
                async with httpx.AsyncClient(limits=limits, timeout=60) as client:
                    url = address + SEARCH_R1.path
                    plain = await rate(lambda: client.post(url, json=body), seconds)
            finally:
                server.terminate()
    return {
        "concurrent": CONCURRENT,
        "ours_per_s": ours[0],
        "ours_client_cpu_ms": ours[1],
        "httpx_per_s": plain[0],
        "httpx_client_cpu_ms": plain[1],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hotpotqa", help="rows in HotpotQA's distractor layout")
    parser.add_argument("--passages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", help="a file for the figures")
    arguments = parser.parse_args()
    figures: dict[str, object] = {}
    if arguments.hotpotqa:
        figures["hotpotqa"] = hotpotqa(arguments.hotpotqa)
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home) / "index"
        started = time.perf_counter()
        index_passages(generated(arguments.passages), folder)
        figures["build_s"] = time.perf_counter() - started
        figures["passages"] = arguments.passages
        figures["latency"] = latency(folder, asked(200), arguments.rounds)
        figures["opening"] = opening(folder, asked(200), arguments.rounds)
    figures["transport"] = asyncio.run(transport(5.0))
    text = json.dumps(figures, indent=1)
    if arguments.out:
        Path(arguments.out).write_text(text + "\n", encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
