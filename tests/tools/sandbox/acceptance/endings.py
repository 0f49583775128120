"""Cases of output, time, ends of programs, and standard input."""

from __future__ import annotations

from tests.tools.sandbox.acceptance.case import (
    BRIEF,
    ERROR,
    KILLED,
    MEMORY,
    OK,
    OUTPUT,
    ROOMY,
    TIMEOUT,
    Program,
)
from tools.sandbox import Limits, Status


def stopped(expectation: str, source: str, *, limits: Limits = BRIEF) -> Program:
    """A program that prints a step and is then ended at the deadline."""
    return Program(expectation, source, (TIMEOUT,), limits=limits)


def ends(expectation: str, source: str, status: Status, shows: str = "") -> Program:
    """A program whose end must be reported correctly."""
    return Program(expectation, source, (status,), shows, prelude=False)


OUTPUTS: list[Program] = [
    Program("a flood of lines ends the run", "while True: print('x' * 1000)", (OUTPUT,), "^xxx"),
    Program("a flood of empty lines ends the run", "step()\nwhile True: print()", (OUTPUT,)),
    Program(
        "a flood without a newline on standard error ends the run",
        "step()\nwhile True: sys.stderr.write('x' * 10000)",
        (OUTPUT,),
    ),
    Program(
        "a flood of a child ends the run",
        "step()\nforks(lambda: [os.write(1, b'y' * 4096) for _ in iter(int, 1)])\nos.wait()",
        (OUTPUT,),
        "yyy",
    ),
    Program(
        "a flood by many at once ends the run",
        "step()\nforks(lambda: [os.write(1 + n % 2, b'y' * 65536) for n in range(10**9)], 8)\n"
        "time.sleep(60)",
        (OUTPUT,),
    ),
    Program(
        "a flood through another opening of the same pipe ends the run",
        "def flood():\n    try: fd = os.open('/proc/self/fd/1', os.O_WRONLY)\n"
        "    except OSError: fd = os.dup(1)\n    while True: os.write(fd, b'y' * 65536)\n"
        "step()\nforks(flood)\ntime.sleep(60)",
        (OUTPUT,),
    ),
    Program(
        "bytes that are no UTF-8 are replaced",
        "os.write(1, b'a\\xff\\xfeb')",
        (OK,),
        "^a\ufffd\ufffdb$",
    ),
    Program("half a character at the end is replaced", "os.write(1, b'a\\xf0\\x9f')", (OK,), "^a."),
    Program("NUL and escapes come through", "print('a\\0b\\033[2Jc')", (OK,), "^a\0b\033\\[2Jc$"),
    Program(
        "lone surrogates in output are bytes, or an error of the program",
        "step()\nprint('\\udcff')\nsys.stdout.flush()\nprint('\\ud800')",
        (ERROR,),
        "^step\n\ufffd",
    ),
]

TIMES: list[Program] = [
    stopped("an endless loop ends", "step()\nwhile True: pass"),
    stopped("a sleep ends", "step()\ntime.sleep(60)"),
    stopped(
        "ignored signals and swallowed exceptions do not help",
        "for n in range(1, 65):\n    try: signal.signal(n, signal.SIG_IGN)\n"
        "    except (OSError, ValueError): pass\nstep()\nwhile True:\n"
        "    try:\n        while True: pass\n    except BaseException: pass",
    ),
    Program(
        "alarms that are set again and swallowed do not help",
        "def again(*_): signal.setitimer(signal.ITIMER_REAL, 0.001); raise KeyboardInterrupt\n"
        "signal.signal(signal.SIGALRM, again)\nstep()\nos.close(2)\nwhile True:\n"
        "    try:\n        again()\n    except BaseException: pass",
        (TIMEOUT, ERROR),  # an error if the alarm arrives in the handler
        limits=BRIEF,
    ),
    stopped("a stopped process ends", "step()\nos.kill(os.getpid(), signal.SIGSTOP)"),
    stopped(
        "a stopped group of processes ends",
        "step()\nforks(lambda: time.sleep(60), 3)\nos.killpg(0, signal.SIGSTOP)",
    ),
    stopped(
        "a loop inside C ends: a regular expression",
        "import re\nstep()\nre.match('(a+)+$', 'a' * 64 + 'b')",
    ),
    Program(
        "a loop inside C ends: arithmetic",
        "step()\nx = 3 ** (3 ** 19)",
        (TIMEOUT, MEMORY),
        limits=BRIEF,
    ),
    stopped(
        "a loop inside C ends: an integer as text",
        "sys.set_int_max_str_digits(0)\nx = 1 << 40_000_000\nstep()\nstr(x)",
        limits=Limits(wall_s=1.5),
    ),
    stopped("a loop inside C ends: a sum", "step()\nsum(iter(int, 1))"),
    stopped(
        "hanging in an exit handler ends", "import atexit\natexit.register(time.sleep, 60)\nstep()"
    ),
    stopped(
        "hanging in a destructor ends",
        "class A:\n    def __del__(self, sleep=time.sleep): sleep(60)\na = A()\nstep()",
    ),
    stopped(
        "a thread that never ends does not keep the run",
        "import threading\nthreading.Thread(target=time.sleep, args=(60,)).start()\nstep()",
    ),
    stopped(
        "closing the standard streams does not hide a sleeper",
        "step()\nfor fd in (0, 1, 2): os.close(fd)\ntime.sleep(60)",
    ),
    stopped(
        "output in drips does not prolong a run",
        "while True:\n    step()\n    time.sleep(0.05)",
    ),
    stopped(
        "waiting for a child that is stopped ends",
        "step()\nforks(lambda: os.kill(os.getpid(), signal.SIGSTOP))\nos.wait()",
    ),
    stopped("reading a pipe without a writer ends", "step()\nos.read(os.pipe()[0], 1)"),
    stopped(
        "processor time is bounded too",
        "step()\nwhile True: pass",
        limits=Limits(wall_s=60.0, cpu_s=1.0),
    ),
    stopped(
        "processor time of unreaped children counts",
        "step()\nsignal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
        "def burn():\n    while time.process_time() < 0.5: pass\n"
        "for _ in range(8):\n    forks(burn)\n    try: os.wait()\n"
        "    except ChildProcessError: pass\nprint('ESCAPED')",
        limits=Limits(wall_s=60.0, cpu_s=1.0),
    ),
]

ENDS: list[Program] = [
    ends("falling off the end is ok", "print('a')", OK, "^a$"),
    ends("sys.exit(0) is ok", "import sys\nprint('a')\nsys.exit(0)", OK, "^a"),
    ends("sys.exit(3) is an error", "import sys\nprint('a')\nsys.exit(3)", ERROR, "^a"),
    ends("sys.exit of a text is an error", "print('a')\nraise SystemExit('ok')", ERROR, "^a"),
    ends("os._exit(7) is an error", "import os\nprint('a', flush=True)\nos._exit(7)", ERROR, "^a"),
    ends("an exception is an error", "print('a')\n1 / 0", ERROR, "^a"),
    ends("an interrupt is an error", "print('a')\nraise KeyboardInterrupt", ERROR, "^a"),
    ends("text that is no Python is an error", "def f(:", ERROR),
    ends("text with a NUL is an error", "print('a')\0", ERROR),
    ends("text with half a character is an error", "print('a')\n'\ud800'", ERROR),
    ends("text nested beyond reason is an error", "(" * 100_000, ERROR),
    ends("endless recursion is an error", "print('a')\ndef f(): f()\nf()", ERROR, "^a"),
    ends(
        "an exception without a readable text is an error",
        "print('a')\nclass E(Exception):\n    def __str__(s): raise SystemExit(0)\nraise E",
        ERROR,
        "^a",
    ),
    ends(
        "an exception hook that exits with 0 does not hide the error",
        "import sys, os\nprint('a', flush=True)\nsys.excepthook = lambda *a: 1 / 0\n1 / 0",
        ERROR,
        "^a",
    ),
    ends("an uncaught MemoryError is memory", "print('a')\nx = ' ' * (1 << 40)", MEMORY, "^a"),
    ends(
        "a segmentation fault is a kill",
        "import ctypes\nprint('a', flush=True)\nctypes.string_at(8)",
        KILLED,
        "^a",
    ),
    ends("an abort is a kill", "import os\nprint('a', flush=True)\nos.abort()", KILLED, "^a"),
    ends(
        "killing oneself is a kill",
        "import os\nprint('a', flush=True)\nos.kill(os.getpid(), 9)",
        KILLED,
        "^a",
    ),
    ends(
        "a call of 32-bit programs is a kill",
        "import ctypes, mmap\nm = mmap.mmap(-1, 4096, prot=7)\n"
        "m.write(b'\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3')\nprint('a', flush=True)\n"
        "at = ctypes.addressof(ctypes.c_char.from_buffer(m))\n"
        "print('ESCAPED', ctypes.CFUNCTYPE(ctypes.c_int)(at)())",
        KILLED,
        "^a",
    ),
]

INPUTS: list[Program] = [
    Program(
        "input arrives whole",
        "step(len(sys.stdin.read()))",
        shows="^step 3300000$",
        stdin="0123456789\n" * 300_000,
    ),
    Program("unread input does no harm", "step()", stdin="0123456789\n" * 300_000),
    Program(
        "closed input does no harm",
        "os.close(0)\nstep()",
        stdin="0123456789\n" * 300_000,
    ),
    Program(
        "the end of input is seen", "try: input()\nexcept EOFError: step('end')", shows="^step end"
    ),
    Program(
        "input bytes arrive unchanged",
        "step(sys.stdin.buffer.read())",
        shows=r"^step b'a\\x00\\xff\\r\\n\\xc3\\xa9'$",
        stdin="a\0\udcff\r\né",
    ),
    Program(
        "a child may read the input",
        "import subprocess\nstep(subprocess.run(['cat'], capture_output=True).stdout)",
        shows="^step b'abc'$",
        stdin="abc",
    ),
    Program(
        "input cannot be written back into",
        "attempt(lambda: os.write(0, b'x'))",
        shows="^held EBADF",
        stdin="abc",
        limits=ROOMY,
    ),
]
