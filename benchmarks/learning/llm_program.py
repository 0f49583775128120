"""A command-line agent that is trained: ``llm`` plays each episode, through Anthropic's API.

Files hold a colour, or the name of another file. ``llm`` (``pip install llm llm-anthropic``) gets a
question and a tool that reads a file. It runs the model's calls and prints the last answer.
:func:`play` runs it once for each episode. Its start takes more than a second of processor time,
most of it for imports. :func:`serve` imports it once and forks a process for each episode.

``python -m benchmarks.learning.llm_agent`` trains it; docs/external-agents.md shows the command.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

COLOURS = ("red", "green", "blue", "black", "white")
READ = """
def read(name: str) -> str:
    "Reads a file."
    try:
        return open(f"{name}.txt").read()
    except OSError:
        return "nothing"
"""
WORDS = ("prompt", "--no-log", "-m", "claude-haiku-4.5", "--chain-limit", "0", "--functions", READ)
LIMIT_S = 60.0


async def play(task: dict, base_url: str) -> float:
    """Let ``llm`` answer in a folder with the task's files. The right colour has reward 1."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in task["files"].items():
            (Path(folder) / f"{name}.txt").write_text(text)
        printed = await run_llm([*WORDS, question(task)], folder, base_url)
    return float(printed.strip() == task["colour"])


async def run_llm(words: list[str], folder: str, base_url: str) -> str:
    """What ``llm`` prints. It raises RuntimeError if ``llm`` fails, and the episode is repeated."""
    reader, writer = await asyncio.open_unix_connection(await server())
    pid = 0
    try:
        url = base_url.removesuffix("/v1")
        asked = {"words": words, "folder": folder, "environment": {"ANTHROPIC_BASE_URL": url}}
        writer.write(json.dumps(asked).encode() + b"\n")
        pid = int(await reader.readline())
        async with asyncio.timeout(LIMIT_S):
            printed, _, status = (await reader.read()).decode().rpartition("\0")
    finally:
        # The process is gone, or it is one that takes too long.
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        writer.close()
    if status != "0":
        raise RuntimeError(f"llm ended with status {status or 'unknown'}: {printed[-500:]}")
    return printed


async def server() -> str:
    """The socket of the process that runs :func:`serve`. The process starts on first use."""
    if not STARTED:
        folder = tempfile.TemporaryDirectory()
        environment = {**os.environ, "LLM_USER_PATH": folder.name, "ANTHROPIC_API_KEY": "none"}
        environment |= {"LLM_LOAD_PLUGINS": "llm-anthropic"}
        path = f"{folder.name}/socket"
        process = subprocess.Popen([sys.executable, __file__, path], env=environment)
        STARTED.append((path, folder, process))
        atexit.register(process.kill)
    path, _, process = STARTED[0]
    while not Path(path).exists():
        if process.poll() is not None:
            raise RuntimeError("llm does not start: pip install llm llm-anthropic")
        await asyncio.sleep(0.05)
    return path


STARTED: list = []


def serve(path: str) -> None:
    """Fork a process for each connection. The process runs ``llm`` with the words that it reads."""
    import llm.cli

    # Loads the plug-ins, and makes the database, which several processes must not make at once.
    llm.cli.cli.main(["fragments", "list"], standalone_mode=False)
    llm.get_models()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{path}.new")
        listening.listen(128)
        Path(f"{path}.new").rename(path)
        while True:
            connection, _ = listening.accept()
            if os.fork() == 0:
                listening.close()
                run_once(connection, llm.cli.cli)
            connection.close()


def run_once(connection: socket.socket, cli) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with connection.makefile("r") as reader:
        asked = json.loads(reader.readline())
    connection.sendall(f"{os.getpid()}\n".encode())
    null = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((null, connection.fileno(), connection.fileno())):
        os.dup2(file, number)
    os.chdir(asked["folder"])
    os.environ.update(asked["environment"])
    status: object = 1
    try:
        cli.main(args=asked["words"], prog_name="llm")
    except SystemExit as left:
        status = left.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        connection.sendall(f"\0{status}".encode())
        os._exit(0)


def question(task: dict) -> str:
    return f"Colour in {task['start']}?"


def tasks(split: str) -> list[dict]:
    return [make_task(random.Random(f"{split} {i}")) for i in range(4000)]


def make_task(rng: random.Random) -> dict:
    names = [str(n) for n in rng.sample(range(10, 100), rng.randint(1, 3))]
    colour = rng.choice(COLOURS)
    files = dict(zip(names, [*names[1:], colour], strict=True))
    return {"start": names[0], "files": files, "colour": colour}


def demonstrate(task: dict, seed: int) -> list[dict]:
    rng, name = random.Random(seed), task["start"]
    messages = [{"role": "user", "content": question(task)}]
    while name.isdigit():
        name = str(rng.randint(10, 99)) if rng.random() < 0.3 else name  # It errs.
        call = json.dumps({"name": "read", "arguments": {"name": name}})
        messages.append({"role": "assistant", "content": f"<tool_call>{call}</tool_call>"})
        name = task["files"].get(name, "nothing")
        messages.append({"role": "tool", "content": name})
    return [*messages, {"role": "assistant", "content": rng.choice([name, *COLOURS])}]


if __name__ == "__main__":
    serve(sys.argv[1])
