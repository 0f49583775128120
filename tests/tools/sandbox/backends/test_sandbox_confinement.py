"""The environment of a program: variables, capabilities, processes, input, files."""

from __future__ import annotations

import os
import resource

import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_program_does_not_see_the_hosts_environment(either, monkeypatch):
    monkeypatch.setenv("TURNWISE_API_KEY", "sk-123")
    result = await either.run(
        "import os, glob\nprint(sorted(os.environ))\n"
        "for name in glob.glob('/proc/*/environ'):\n"
        "    try: print(open(name).read())\n    except OSError: pass\n"
    )
    assert "sk-123" not in result.stdout
    assert result.stdout.splitlines()[0] == (
        "['HOME', 'LANG', 'MALLOC_ARENA_MAX', 'PATH', 'PYTHONDONTWRITEBYTECODE', 'TMPDIR']"
    )


async def test_a_crash_starts_no_helper_of_the_machine(either):
    """Only a limit of 1 keeps the kernel from piping a core dump to a helper that runs as root."""
    if os.getuid() != 0 and resource.getrlimit(resource.RLIMIT_CORE)[1] == 0:
        pytest.skip("core dumps are disabled permanently here: the limit cannot be raised to 1")
    result = await either.run("import resource\nprint(resource.getrlimit(resource.RLIMIT_CORE))")
    assert result.stdout == "(1, 1)\n"


async def test_a_program_has_both_filters(either):
    if either.isolation == "restricted":
        pytest.skip("a program sees no /proc there")
    result = await either.run("print(open('/proc/self/status').read())")
    status = dict(line.split(":") for line in result.stdout.split("\n") if ":" in line)
    assert status["Seccomp"].strip() == "2" and int(status.get("Seccomp_filters", 2)) >= 2


async def test_timers_are_limited_per_run(either):
    if either.isolation == "restricted" and os.getuid() != 0:
        pytest.skip("not promised: all processes of a user have them in common")
    head = (
        "import ctypes, time\nlibc, timer, count = ctypes.CDLL(None), ctypes.c_void_p(), 0\n"
        "while count < {} and libc.timer_create(1, None, ctypes.byref(timer)) == 0: count += 1\n"
    )
    async with either.session() as greedy, either.session() as other:
        for session in (greedy, other):
            taken = (await session.run(head.format(10_000) + "count")).value
            assert 240 <= int(taken) <= 256  # a signal or two may be in transit


async def test_no_capability_is_held(either):
    source = (
        "import ctypes, struct\nlibc = ctypes.CDLL(None)\n"
        "head = ctypes.create_string_buffer(struct.pack('=Ii', 0x20080522, 0))\n"
        "data = ctypes.create_string_buffer(24)\nprint(libc.capget(head, data), data.raw)\n"
        "print(sum(libc.prctl(23, n) for n in range(41)))"
    )
    held, bounding = (await either.run(source)).stdout.splitlines()
    sets = [f"{bytes(12)!r}"[2:-1]] * 2  # effective, permitted and inheritable, in two halves
    assert held == f"0 b'{''.join(sets)}'"
    if either.isolation == "namespaces":
        assert bounding == "0"


async def test_a_program_sees_no_other_processes(either):
    result = await either.run(
        "import os\ntry: print(sorted(int(n) for n in os.listdir('/proc') if n.isdigit()))\n"
        "except PermissionError: print('closed')"
    )
    assert result.stdout in ("[1, 2]\n", "closed\n")


async def test_large_input_arrives_whole_and_unread_input_does_no_harm(either):
    text = "0123456789\n" * 300_000
    result = await either.run("import sys\nprint(len(sys.stdin.read()))", stdin=text)
    assert result.stdout == f"{len(text)}\n"
    assert (await either.run("print('unread')", stdin=text)).stdout == "unread\n"


async def test_given_files_can_be_read_and_imported(either):
    files = {"helper.py": "def g(): return 3\n", "data/x.bin": b"\x00\xff"}
    result = await either.run(
        "import helper\nprint(helper.g(), open('data/x.bin', 'rb').read())", files=files
    )
    assert result.stdout == "3 b'\\x00\\xff'\n"


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "", "a\0b"])
async def test_files_stay_inside(either, path):
    with pytest.raises(ValueError, match="relative path inside"):
        await either.run("", files={path: "x"})


async def test_random_numbers_differ_from_run_to_run(either):
    seen = {(await either.run("import random; print(random.random())")).stdout for _ in range(6)}
    assert len(seen) == 6
