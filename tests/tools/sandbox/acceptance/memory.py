"""Attacks on the limit of memory, one for each kind of memory.

``benchmarks.sandbox.memory`` measures the same programs: what they hold at their peak.
"""

from __future__ import annotations

from benchmarks.sandbox.memory_kinds import KINDS, PRELUDE
from tests.tools.sandbox.acceptance.case import ERROR, KILLED, MEMORY, OK, TIMEOUT, Program
from tools.sandbox import Limits

_HALF = Limits(wall_s=100.0, cpu_s=200.0, memory_mb=128)
"""Half of the sandbox's limit, to spare the machine."""
_SPLIT = (
    "def split():\n    at = libc.mmap(None, 2000 * 4096, 0, 0x22, -1, 0)\n"
    "    for n in range(0, 2000, 2): libc.mprotect(ctypes.c_void_p(at + n * 4096), 4096, 1)\n"
)
"""Almost as many mappings as eight processes may have, so that a check takes longest."""
_SHARES = """
import mmap, os
held = [mmap.mmap(-1, size) for size in (1000, 1 << 20, 8 << 20)]
if os.fork() == 0:
    for block in held: block[-1] = 7
    os._exit(0)
os.wait()
step([block[-1] for block in held])
"""

MEMORY_CASES: list[Program] = [
    *(
        Program(
            f"memory of every kind is limited: {kind.name}",
            kind.source,
            (MEMORY, ERROR, KILLED, OK),
            "^began",
            limits=_HALF,
            prelude=False,
            crowds="forks(" in kind.program,
        )
        for kind in KINDS
    ),
    Program(
        "memory is limited even if checks take long",
        PRELUDE + _SPLIT + "def grow():\n    split()\n    time.sleep(1)\n"
        "    held = touch(mmap.mmap(-1, 100 * MB, flags=2)); time.sleep(100)\n"
        "forks(grow, 7)\nwait()",
        (MEMORY, ERROR),
        "^began",
        limits=_HALF,
        prelude=False,
        crowds=True,
    ),
    Program(
        "the deadline is kept even if checks take long",
        PRELUDE + _SPLIT + "def spin():\n    split()\n    while True: pass\nforks(spin, 7)\nwait()",
        (TIMEOUT, ERROR),
        "^began",
        limits=Limits(wall_s=3.0, cpu_s=100.0),
        prelude=False,
        crowds=True,
    ),
    Program(
        "anonymous memory can be shared with children in mappings of up to 8 MiB",
        _SHARES,
        (OK,),
        r"^step \[7, 7, 7\]$",
    ),
    Program(
        "multiprocessing shares numbers and arrays with children",
        "import multiprocessing.sharedctypes as shared\nstep()\n"
        "values = shared.RawArray('d', 1_000_000)\n"
        "if os.fork() == 0:\n    values[999_999] = 2.5\n    os._exit(0)\n"
        "os.wait()\nstep(values[999_999])",
        (OK,),
        "^step 2.5$",
        not_promised={"restricted": "there is no /dev/shm"},
    ),
    Program(
        "files can be copied, although not by sendfile",
        "import shutil\nwith open('a', 'wb') as file: file.write(bytes(range(256)) * 9000)\n"
        "shutil.copyfile('a', 'b')\nstep(open('a', 'rb').read() == open('b', 'rb').read())",
        (OK,),
        "^step True$",
    ),
    Program(
        "space for a file can be allocated in advance",
        "fd = os.open('f', os.O_CREAT | os.O_RDWR)\nos.posix_fallocate(fd, 0, 1 << 20)\n"
        "step(os.fstat(fd).st_size, os.fstat(fd).st_blocks >= 2048)",
        (OK,),
        "^step 1048576 True$",
    ),
    Program(
        "an endless source of zeros can be read",
        "step(open('/dev/full', 'rb').read(5))\nstep(open('/dev/zero', 'rb').read(5))",
        (OK,),
        r"^step b'\\x00\\x00\\x00\\x00\\x00'\nstep b'\\x00\\x00\\x00\\x00\\x00'",
        not_promised={"restricted": "/dev/zero is closed, /dev/full reads the same"},
    ),
]
