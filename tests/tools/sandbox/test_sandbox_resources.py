"""Conformance: resources, output, time, the ends of programs. Each case says what must hold."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import pytest

from tools.sandbox import Limits, Status

pytestmark = pytest.mark.asyncio(loop_scope="module")

OK, ERROR, TIMEOUT = Status.OK, Status.ERROR, Status.TIMEOUT
MEMORY, OUTPUT, KILLED = Status.MEMORY, Status.OUTPUT, Status.KILLED


@dataclass(frozen=True)
class Case:
    holds: str
    """What must hold, in words."""
    source: str
    statuses: tuple[Status, ...]
    prints: str | None = None
    """Must be in standard output; proof that the program came so far."""
    limits: Limits = field(default_factory=lambda: Limits(wall_s=5.0))
    stdin: str = ""


SHORT = Limits(wall_s=0.6)

RESOURCES = [
    Case(
        "a fork bomb is stopped, by a refusal or by the watchdog",
        "import os, time\nprint('began', flush=True)\n"
        "for n in range(2000):\n    if os.fork() == 0: time.sleep(60)\n"
        "time.sleep(60)\nprint('ESCAPED')",
        (ERROR, KILLED),
        "began",
    ),
    Case(
        "children that fork on and on are all gone afterwards",
        "import os\nprint('began', flush=True)\n"
        "while True:\n    try: os.fork()\n    except OSError: pass",
        (TIMEOUT, KILLED),
        "began",
        SHORT,
    ),
    Case(
        "a thread bomb stops at the limit of processes",
        "import threading, time\nn = 0\ntry:\n    while n < 500:\n"
        "        threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1\n"
        "except RuntimeError: pass\nprint('threads', n <= 64)",
        (OK,),
        "threads True",
    ),
    Case(
        "one process cannot allocate beyond the limit",
        "print('began', flush=True)\nblocks = [bytearray(10 << 20) for _ in range(100)]",
        (MEMORY,),
        "began",
    ),
    Case(
        "running out of memory can be caught, as anywhere",
        "try:\n    block = bytearray(1 << 30)\nexcept MemoryError:\n    print('caught')",
        (OK,),
        "caught",
    ),
    Case(
        "many processes together cannot use more than one may",
        "import os, time\nprint('began', flush=True)\nfor _ in range(8):\n"
        "    if os.fork() == 0:\n        block = bytearray(b'x') * (80 << 20); time.sleep(60)\n"
        "time.sleep(60)",
        (MEMORY,),
        "began",
    ),
    Case(
        "processes that make themselves unreadable are counted too",
        "import ctypes, os, time\nprint('began', flush=True)\nfor _ in range(8):\n"
        "    if os.fork() == 0:\n        ctypes.CDLL(None).prctl(4, 0)\n"
        "        block = bytearray(b'x') * (80 << 20); time.sleep(60)\n"
        "time.sleep(60)",
        (MEMORY,),
        "began",
    ),
    Case(
        "shared memory without a name counts as memory",
        "import mmap\nprint('began', flush=True)\nm = mmap.mmap(-1, 600 << 20)\n"
        "for at in range(0, 600 << 20, 4096): m[at] = 1\n"
        "import time; time.sleep(60)",
        (MEMORY, ERROR),
        "began",
    ),
    Case(
        "there are no files in memory outside the limits",
        "import os\ntry: os.memfd_create('x')\nexcept OSError: print('refused')",
        (OK,),
        "refused",
    ),
    Case(
        "files together cannot exceed the disk limit",
        "print('began', flush=True)\nfor i in range(40):\n"
        "    with open(f'f{i}', 'wb') as f: f.write(bytes(4 << 20))\nimport time; time.sleep(3)\n"
        "print('ESCAPED')",
        (ERROR, KILLED),
        "began",
    ),
    Case(
        "one file cannot exceed the disk limit, sparse or not",
        "print('began', flush=True)\nwith open('f', 'wb') as f: f.truncate(1 << 30)\n"
        "print('ESCAPED')",
        (ERROR, KILLED),
        "began",
    ),
    Case(
        "/dev/shm is small or closed",
        "print('began', flush=True)\nwith open('/dev/shm/x', 'wb') as f: f.write(bytes(64 << 20))\n"
        "print('ESCAPED')",
        (ERROR, KILLED),
        "began",
    ),
    Case(
        "the number of files is bounded",
        "print('began', flush=True)\nfor i in range(20000): open(f'f{i}', 'w').close()\n"
        "import time; time.sleep(3)\nprint('ESCAPED')",
        (ERROR, KILLED),
        "began",
    ),
    Case(
        "the number of descriptors is bounded",
        "held = []\ntry:\n    while True: held.append(open('/dev/null'))\n"
        "except OSError: print('held', len(held) < 256)",
        (OK,),
        "held True",
    ),
    Case(
        "socket buffers hold no more than tens of MiB of kernel memory",
        "import socket\nheld, total = [], 0\ntry:\n    while True:\n"
        "        a, b = socket.socketpair()\n        held += [a, b]\n"
        "        a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 28)\n"
        "        a.setblocking(False)\n        try:\n"
        "            while True: total += a.send(bytes(1 << 16))\n"
        "        except BlockingIOError: pass\n"
        "except OSError: print('buffered', 0 < total < 40 << 20)",
        (OK,),
        "buffered True",
    ),
]

OUTPUTS = [
    Case("a flood of lines ends the run", "while True: print('x' * 1000)", (OUTPUT,), "xxx"),
    Case(
        "a flood without a newline on standard error ends the run",
        "import sys\nprint('began', flush=True)\nwhile True: sys.stderr.write('x' * 10000)",
        (OUTPUT,),
        "began",
    ),
    Case(
        "a flood of a child ends the run",
        "import os\nif os.fork() == 0:\n    while True: os.write(1, b'y' * 4096)\nos.wait()",
        (OUTPUT,),
        "yyy",
    ),
    Case(
        "bytes that are no UTF-8 are replaced",
        "import os\nos.write(1, b'a\\xff\\xfeb')",
        (OK,),
        "a\ufffd\ufffdb",
    ),
    Case("NUL and escapes come through", "print('a\\0b\\033[2Jc')", (OK,), "a\0b\033[2Jc"),
    Case(
        "characters beyond ASCII come through",
        "print('h\\u00e9llo \\U0001f600')",
        (OK,),
        "héllo 😀",
    ),
]

TIMES = [
    Case(
        "an endless loop ends",
        "print('began', flush=True)\nwhile True: pass",
        (TIMEOUT,),
        "began",
        SHORT,
    ),
    Case(
        "a sleep ends",
        "print('began', flush=True)\nimport time; time.sleep(60)",
        (TIMEOUT,),
        "began",
        SHORT,
    ),
    Case(
        "ignored signals and swallowed exceptions do not help",
        "import signal\nfor n in range(1, 32):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nprint('began', flush=True)\nwhile True:\n"
        "    try:\n        while True: pass\n    except BaseException: pass",
        (TIMEOUT,),
        "began",
        SHORT,
    ),
    Case(
        "a stopped process ends",
        "import os, signal\nprint('began', flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)",
        (TIMEOUT,),
        "began",
        SHORT,
    ),
    Case(
        "a loop inside C ends: a regular expression",
        "import re\nprint('began', flush=True)\nre.match('(a+)+$', 'a' * 64 + 'b')",
        (TIMEOUT,),
        "began",
        SHORT,
    ),
    Case(
        "a loop inside C ends: arithmetic",
        "print('began', flush=True)\nx = 3 ** (3 ** 19)",
        (TIMEOUT, MEMORY),
        "began",
        SHORT,
    ),
    Case(
        "hanging at exit ends",
        "import atexit, time\natexit.register(time.sleep, 60)\nprint('began', flush=True)",
        (TIMEOUT,),
        "began",
        SHORT,
    ),
    Case(
        "closing the standard streams does not hide a sleeper",
        "import os, time\nprint('began', flush=True)\nfor fd in (0, 1, 2): os.close(fd)\n"
        "time.sleep(60)",
        (TIMEOUT,),
        "began",
        SHORT,
    ),
    Case(
        "output in drips does not prolong a run",
        "import time\nwhile True:\n    print('.', flush=True)\n    time.sleep(0.05)",
        (TIMEOUT,),
        ".",
        SHORT,
    ),
    Case(
        "processor time is bounded too",
        "print('began', flush=True)\nwhile True: pass",
        (TIMEOUT,),
        "began",
        Limits(wall_s=60.0, cpu_s=1.0),
    ),
]

ENDS = [
    Case("falling off the end is ok", "x = 1", (OK,)),
    Case("sys.exit(0) is ok", "import sys\nprint('a')\nsys.exit(0)", (OK,), "a"),
    Case("sys.exit(3) is an error", "import sys\nprint('a')\nsys.exit(3)", (ERROR,), "a"),
    Case("os._exit(7) is an error", "import os\nos._exit(7)", (ERROR,)),
    Case("an exception is an error", "print('a')\n1 / 0", (ERROR,), "a"),
    Case("text that is no Python is an error", "def f(:", (ERROR,)),
    Case("endless recursion is an error", "def f(): f()\nf()", (ERROR,)),
    Case("a segmentation fault is a kill", "import ctypes\nctypes.string_at(8)", (KILLED,)),
    Case("an abort is a kill", "import os\nos.abort()", (KILLED,)),
    Case("killing oneself is a kill", "import os\nos.kill(os.getpid(), 9)", (KILLED,)),
]


@pytest.mark.parametrize("case", RESOURCES, ids=lambda case: case.holds)
async def test_resources_are_bounded(either, case):
    await check(either, case)


@pytest.mark.parametrize("case", OUTPUTS + TIMES + ENDS, ids=lambda case: case.holds)
async def test_runs_end_as_they_should(mostly_bwrap, case):
    await check(mostly_bwrap, case)


async def check(sandbox, case: Case) -> None:
    started = time.monotonic()
    result = await sandbox.run(case.source, stdin=case.stdin, limits=case.limits)
    assert result.status in case.statuses, result
    assert (case.prints or "") in result.stdout, result
    assert "ESCAPED" not in result.stdout
    assert "tools.sandbox" not in result.stderr
    assert time.monotonic() - started < case.limits.wall_s + 3
    assert (await sandbox.run("print('next')")).stdout == "next\n"


async def test_the_cap_of_output_is_exact(either):
    result = await either.run("print('x' * 5000, end='')", limits=Limits(output_kb=4))
    assert (len(result.stdout), result.stdout_truncated) == (4096, True)
    result = await either.run("print('x' * 4096, end='')", limits=Limits(output_kb=4))
    assert (len(result.stdout), result.stdout_truncated) == (4096, False)


async def test_exit_codes_and_signals_are_told_apart(either):
    result = await either.run("import sys\nsys.exit('a message')")
    assert (result.exit_code, result.signal, result.stderr) == (1, None, "a message\n")
    result = await either.run("import os\nos._exit(7)")
    assert (result.exit_code, result.signal) == (7, None)
    result = await either.run("import os\nos.kill(os.getpid(), 11)")
    assert (result.exit_code, result.signal) == (None, 11)


async def test_a_traceback_shows_the_program_and_nothing_else(either):
    result = await either.run("def f():\n    return 1 / 0\nf()")
    assert result.stderr.splitlines()[:4] == [
        "Traceback (most recent call last):",
        '  File "program.py", line 3, in <module>',
        "    f()",
        '  File "program.py", line 2, in f',
    ]


async def test_times_and_memory_are_reported(either):
    result = await either.run("import time\nb = bytearray(b'x') * (50 << 20)\ntime.sleep(0.2)")
    assert 0.2 <= result.wall_s < 3
    assert 55 < result.max_rss_mb < 200
    assert 0 < result.cpu_s < 1
    assert (result.backend, result.isolation) == (either.backend, either.isolation)
    enforcers = result.limits_enforced_by
    assert enforcers.startswith("rlimit+watchdog")
    assert ("cgroup" in enforcers) == (either.backend == "docker")
