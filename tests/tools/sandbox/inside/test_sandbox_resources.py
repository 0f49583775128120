"""The fields of a result: limited output, exit codes, signals, tracebacks, times, memory."""

from __future__ import annotations

import pytest

from tools.sandbox import Limits

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_the_cap_of_output_is_exact(either):
    result = await either.run("print('x' * 5000, end='')", limits=Limits(output_kb=4))
    assert (len(result.stdout), result.stdout_truncated) == (4096, True)
    result = await either.run("print('x' * 4096, end='')", limits=Limits(output_kb=4))
    assert (len(result.stdout), result.stdout_truncated) == (4096, False)


async def test_exit_codes_and_signals_are_distinguished(either):
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
