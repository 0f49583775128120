"""Programs of a soak: honest ones with known answers, and attacks with the permitted outcomes.

An attack that escapes leaves a process, a file, a socket or a System V object with the name
``mark()``. The census searches the machine for this name.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from tools.sandbox import (
    AssertTest,
    CallTest,
    CopyRefused,
    Limits,
    OutcomeKind,
    Sandbox,
    Session,
    SessionOver,
    Snapshot,
    Status,
    StdioTest,
    Verdict,
)


class End(NamedTuple):
    """How a run, grade or session ended."""

    how: str
    complaint: str
    """Description of what was wrong, or ""."""


Act = Callable[[Sandbox, random.Random], Awaitable[End]]

HONEST_S = 60.0
"""Wall limit of honest programs: a loaded machine must not fail them."""
MEMORY_MB = 128
SYSV_KEY = 0x5A000000
"""Plus the process id: the key under which attacks try to make System V objects."""


def mark() -> str:
    """Mark in the names of everything that an attack tries to leave behind."""
    return f"soak-{os.getpid()}"


@dataclass(frozen=True)
class Kind:
    """One kind of run."""

    name: str
    share: int
    """Relative frequency among the honest or among the hostile programs."""
    act: Act


def limits(wall_s: float) -> Limits:
    """Limits of one run."""
    return Limits(wall_s=wall_s, memory_mb=MEMORY_MB)


# Honest.


async def _prints(sandbox: Sandbox, rng: random.Random) -> End:
    number = rng.randrange(10**9)
    result = await sandbox.run(f"print({number} + 1)", limits=limits(HONEST_S))
    return _end(
        result.status, (result.status, result.stdout) == (Status.OK, f"{number + 1}\n"), result
    )


async def _raises(sandbox: Sandbox, rng: random.Random) -> End:
    number = rng.randrange(10**9)
    result = await sandbox.run(f"raise ValueError({number})", limits=limits(HONEST_S))
    said = result.stderr.endswith(f"ValueError: {number}\n")
    return _end(result.status, result.status is Status.ERROR and said, result)


async def _reads(sandbox: Sandbox, rng: random.Random) -> End:
    text = str(rng.randrange(10**9)) * 2000
    result = await sandbox.run(
        "print(input()[::-1], end=open('a/b').read())",
        text,
        {"a/b": "!"},
        limits=limits(HONEST_S),
    )
    return _end(
        result.status, (result.status, result.stdout) == (Status.OK, f"{text[::-1]}!"), result
    )


async def _computes(sandbox: Sandbox, rng: random.Random) -> End:
    count = rng.randrange(1000, 50_000)
    result = await sandbox.run(
        f"import threading\nfound = []\n"
        f"worker = threading.Thread(target=lambda: found.append(sum(range({count}))))\n"
        "worker.start(); worker.join(); print(*found)",
        limits=limits(HONEST_S),
    )
    return _end(result.status, result.stdout == f"{count * (count - 1) // 2}\n", result)


async def _grade(sandbox: Sandbox, rng: random.Random) -> End:
    """Grade by all three kinds of tests. Every other submission fails one of them."""
    wrong = rng.random() < 0.5
    offset = rng.randrange(10**6)
    body = f"x + {offset}" + (" + (x == 3)" if wrong else "")
    source = f"def f(x):\n    return {body}\nif __name__ == '__main__':\n    print(f(int(input())))"
    match rng.randrange(3):
        case 0:
            tests = [CallTest((n,), n + offset) for n in range(5)]
        case 1:
            tests = [AssertTest(f"assert f({n}) == {n + offset}") for n in range(5)]
        case _:
            tests = [StdioTest(f"{n}\n", f"{n + offset}\n") for n in (2, 3)]
    verdict = await sandbox.grade(source, tests, "f", limits=limits(HONEST_S))
    passed = len(tests) - wrong
    kinds = {outcome.kind for outcome in verdict.outcomes} - {OutcomeKind.PASSED}
    right = (verdict.passed, verdict.num_passed) == (not wrong, passed)
    return _end(_passed(verdict), right and kinds <= {OutcomeKind.WRONG}, verdict)


async def _session(sandbox: Sandbox, rng: random.Random) -> End:
    number = rng.randrange(10**9)
    async with sandbox.session(limits=limits(HONEST_S)) as session:
        await session.run(f"x = {number}")
        async with await session.fork() as twin:
            await twin.run("x += 1")
            other = await twin.run("x")
        own = await session.run("x")
    right = (own.value, other.value) == (str(number), str(number + 1))
    return _end(own.status, right, (own, other))


HONEST = [
    Kind("prints", 10, _prints),
    Kind("raises", 3, _raises),
    Kind("reads", 3, _reads),
    Kind("computes", 3, _computes),
    Kind("grade", 6, _grade),
    Kind("session", 1, _session),
]

# Hostile.

_START = f"import os, signal, sys, time, ctypes\nMARK = {{mark!r}}\nKEY = {SYSV_KEY} + {{pid}}\n"
_LINGER = "os.execv('/bin/sleep', [MARK, '600'])\n"
_TRY = "def attempt(act, *arguments):\n    try: act(*arguments)\n    except Exception: pass\n"

_OK, _ERROR, _TIMEOUT = Status.OK, Status.ERROR, Status.TIMEOUT
_MEMORY, _OUTPUT, _KILLED = Status.MEMORY, Status.OUTPUT, Status.KILLED
_PROGRAMS: dict[str, tuple[int, float, set[Status], str]] = {
    # name: share, wall limit, how it may end, text
    "forks-left": (6, HONEST_S, {_OK}, "for _ in range(5):\n    if os.fork() == 0: " + _LINGER),
    "daemon": (
        6,
        HONEST_S,
        {_OK},
        f"{_TRY}if os.fork() == 0:\n    attempt(os.setsid)\n    if os.fork() == 0:\n"
        f"        attempt(os.setsid); {_LINGER}    os._exit(0)\nos.wait()",
    ),
    "flood": (4, HONEST_S, {_OUTPUT}, "print('x' * (3 << 20))"),
    "flood-by-children": (
        2,
        HONEST_S,
        {_OUTPUT},
        "for _ in range(4): os.fork()\nwhile True: os.write(2, b'y' * 65536)",
    ),
    "os-exit": (6, HONEST_S, {_ERROR}, "os._exit(3)"),
    "threads": (
        4,
        HONEST_S,
        {_OK},
        "import threading\nfor _ in range(8):\n"
        "    threading.Thread(target=time.sleep, args=(600,), daemon=True).start()",
    ),
    "threads-for-ever": (
        1,
        0.4,
        {_TIMEOUT},
        "import threading\nthreading.Thread(target=time.sleep, args=(600,)).start()",
    ),
    "loop": (3, 0.2, {_TIMEOUT}, "while True: pass"),
    "loops": (1, 0.4, {_TIMEOUT}, "for _ in range(3): os.fork()\nwhile True: pass"),
    "memory": (2, HONEST_S, {_MEMORY}, "kept = []\nwhile True: kept.append(bytearray(8 << 20))"),
    "memory-of-many": (
        1,
        HONEST_S,
        {_MEMORY, _KILLED},
        f"for _ in range(3): os.fork()\nkept = bytearray(b'x') * ({MEMORY_MB // 3} << 20)\n"
        "time.sleep(600)",
    ),
    "fork-bomb": (2, 0.6, {_OK, _TIMEOUT, _KILLED, _ERROR}, f"{_TRY}while True: attempt(os.fork)"),
    "descriptors": (
        3,
        HONEST_S,
        {_OK},
        "import socket\nkept = []\ntry:\n    while True: kept.append(socket.socketpair())\n"
        "except OSError: pass\nfor one, other in kept:\n    one.setblocking(False)\n    try:\n"
        "        while True: one.send(b'x' * 65536)\n    except OSError: pass",
    ),
    "files": (
        1,
        HONEST_S,
        {_OK, _KILLED},
        f"{_TRY}for n in range(4000):\n    attempt(lambda: open(f'file-{{n}}', 'w').close())",
    ),
    "deep-tree": (
        1,
        HONEST_S,
        {_OK, _KILLED},
        f"{_TRY}for n in range(1500):\n    attempt(os.mkdir, 'd'); attempt(os.chdir, 'd')\n"
        "attempt(os.chmod, '.', 0)",
    ),
    "full-disk": (
        1,
        HONEST_S,
        {_OK, _ERROR, _KILLED, _MEMORY},
        "for n in range(4):\n    with open(f'big-{n}', 'wb') as file:\n"
        "        for _ in range(32): file.write(bytes(1 << 20))",
    ),
    "files-everywhere": (
        4,
        HONEST_S,
        {_OK},
        f"{_TRY}for place in ('/', '/tmp', '/var/tmp', '/dev/shm', '/usr', '/etc', '/run', '/dev',"
        " '/proc', '/home', '/handover', os.path.dirname(sys.executable or '/')):\n"
        "    attempt(lambda: open(f'{place}/{MARK}', 'w').close())\n"
        "    attempt(os.mkdir, f'{place}/{MARK}-d')\n"
        "    attempt(os.symlink, '/etc/passwd', f'{place}/{MARK}-l')\n"
        "    attempt(os.mkfifo, f'{place}/{MARK}-f')",
    ),
    "sockets": (
        3,
        HONEST_S,
        {_OK},
        f"{_TRY}import socket\ndef listen(family, address):\n    s = socket.socket(family)\n"
        "    s.bind(address); s.listen()\n    if os.fork() == 0: " + _LINGER + "\n"
        "attempt(listen, socket.AF_UNIX, '\\0' + MARK)\n"
        "attempt(listen, socket.AF_UNIX, MARK)\nattempt(listen, socket.AF_INET, ('', 0))",
    ),
    "system-v": (
        3,
        HONEST_S,
        {_OK},
        "libc = ctypes.CDLL(None, use_errno=True)\nfor key in (KEY, 0):\n"
        "    print(libc.shmget(key, 4096, 0o1666), libc.semget(key, 1, 0o1666),"
        " libc.msgget(key, 0o1666))",
    ),
    "kill-everybody": (
        4,
        HONEST_S,
        {_OK},
        f"{_TRY}signal.signal(signal.SIGTERM, signal.SIG_IGN)\nfor number in (15, 9, 19):\n"
        "    attempt(os.kill, -1, number)\nfor pid in range(1, 400):\n"
        "    if pid != os.getpid():\n"
        "        attempt(os.kill, pid, 9); attempt(os.kill, pid, 19)",
    ),
    "kill-own-group": (2, HONEST_S, {_KILLED}, "os.fork(); os.killpg(0, 9)"),
    "stops-itself": (2, 0.3, {_TIMEOUT}, "os.kill(os.getpid(), signal.SIGSTOP)"),
    "stopped-children": (
        2,
        HONEST_S,
        {_OK},
        "for _ in range(3):\n    child = os.fork()\n"
        "    if child == 0:\n        while True: time.sleep(1)\n    os.kill(child, signal.SIGSTOP)",
    ),
    "closed-streams": (4, HONEST_S, {_OK, _ERROR}, "os.closerange(0, 64)"),
    "closed-streams-for-ever": (
        1,
        0.3,
        {_TIMEOUT},
        "os.closerange(0, 64)\nwhile True: time.sleep(1)",
    ),
    "another-program": (1, 0.3, {_TIMEOUT}, _LINGER),
    "crash": (3, HONEST_S, {_KILLED}, "ctypes.string_at(0)"),
    "unread-input": (2, HONEST_S, {_OK}, "os.close(0)"),
}


async def _attack(
    source: str, wall_s: float, allowed: set[Status], sandbox: Sandbox, rng: random.Random
) -> End:
    text = _START.format(mark=mark(), pid=os.getpid()) + source
    result = await sandbox.run(text, "x" * (1 << 18), limits=limits(wall_s))
    return _end(result.status, result.status in allowed, result)


_GARBAGE = """
import os, struct
def shout():
    for fd in range(3, 32):
        for data in (b"\\xff" * 64, struct.pack("!I", 30) + b'["value", {"int": "0x1"}, 1]      ',
                     struct.pack("!I", 1 << 31), b"loaded"):
            try: os.write(fd, data)
            except OSError: pass
def f(x):
    shout()
    return x
"""


async def _garbage(sandbox: Sandbox, rng: random.Random) -> End:
    """Whatever is written where, nothing passes that is wrong."""
    source = _GARBAGE + rng.choice(["shout()", "pass", "os._exit(0)", "os.closerange(0, 64)"])
    test = rng.choice([CallTest((1,), 2), AssertTest("assert f(1) == 2")])
    verdict = await sandbox.grade(source, [test, test], "f", limits=limits(HONEST_S))
    return _end(_passed(verdict), verdict.num_passed == 0, verdict)


async def _cancelled_run(sandbox: Sandbox, rng: random.Random) -> End:
    text = _START.format(mark=mark(), pid=os.getpid())
    text += f"for _ in range(3):\n    if os.fork() == 0: {_LINGER}time.sleep(600)"
    await _give_up(sandbox.run(text, limits=limits(HONEST_S)), rng)
    return End("cancelled", "")


async def _cancelled_grade(sandbox: Sandbox, rng: random.Random) -> End:
    source = "import os, time\ndef f(x):\n    os.fork()\n    time.sleep(600)"
    test = rng.choice([CallTest((1,), 2), AssertTest("assert f(1) == 2")])
    await _give_up(sandbox.grade(source, [test], "f", limits=limits(HONEST_S)), rng)
    return End("cancelled", "")


async def _abused_session(sandbox: Sandbox, rng: random.Random) -> End:
    """Processes left behind, copies, a violent end or none, a caller that goes away."""
    text = _START.format(mark=mark(), pid=os.getpid())
    session = sandbox.session(limits=limits(HONEST_S))
    await session.start()
    copies: list[Session | Snapshot] = []
    try:
        await session.run(f"{text}\nfor _ in range(3):\n    if os.fork() == 0: {_LINGER}")
        for copy in (session.fork, session.snapshot):
            copies.append(await copy())
        end = rng.choice(["os._exit(1)", "os.kill(0, 9)", "while True: pass", "time.sleep(600)"])
        await _give_up(session.run(end), rng)
    except (SessionOver, CopyRefused):
        pass
    finally:
        for copy in copies:
            await copy.close()
        await session.close()
    return _end("closed", session.over, session)


async def _give_up(act: Awaitable[object], rng: random.Random) -> None:
    with contextlib.suppress(TimeoutError, SessionOver):
        async with asyncio.timeout(rng.uniform(0.0, 0.3)):
            await act


HOSTILE = [
    *(
        Kind(name, share, partial(_attack, source, wall_s, allowed))
        for name, (share, wall_s, allowed, source) in _PROGRAMS.items()
    ),
    Kind("garbage", 8, _garbage),
    Kind("cancelled-run", 4, _cancelled_run),
    Kind("cancelled-grade", 4, _cancelled_grade),
    Kind("abused-session", 2, _abused_session),
]


def _end(how: str, right: bool, found: object) -> End:
    return End(how, "" if right else repr(found)[:600])


def _passed(verdict: Verdict) -> str:
    return "passed" if verdict.passed else "failed"
