"""Limits of a run's total usage: kernel memory, processor time, deleted files, priority."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tools.sandbox import Limits, Status
from tools.sandbox.inside.supervisor import processes, usage

pytestmark = pytest.mark.asyncio(loop_scope="module")

FORKS = "import os\nprint('began', flush=True)\nfor _ in range({}):\n    if os.fork() == 0: break\n"
SPIN = "while True: pass\n"


async def test_page_tables_count_as_memory(either):
    # One page in each GiB of address space: 8 KiB of page tables for 4 KiB of zeros.
    result = await either.run(
        "import ctypes\nlibc = ctypes.CDLL(None)\nlibc.mmap.restype = ctypes.c_void_p\n"
        "libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, "
        "ctypes.c_long]\nprint('began', flush=True)\n"
        "for k in range(64_000):\n"
        "    at = libc.mmap(0x100000000000 + (k << 30), 4096, 1, 0x100022, -1, 0)\n"
        "    ctypes.string_at(at, 1)\nimport time\ntime.sleep(10)\nprint('ESCAPED')",
        limits=Limits(wall_s=60.0, memory_mb=128),
    )
    assert (result.status, result.stdout) == (Status.MEMORY, "began\n")
    assert result.max_rss_mb < 100


async def test_socket_buffers_of_many_processes_count_as_memory(either):
    result = await either.run(
        FORKS.format(15) + "import socket, time\nheld = []\ntry:\n    while True:\n"
        "        held += socket.socketpair()\n        held[-1].setblocking(False)\n"
        "        try:\n            while True: held[-1].send(bytes(1 << 16))\n"
        "        except BlockingIOError: pass\nexcept OSError: time.sleep(60)",
        limits=Limits(wall_s=60.0),
    )
    assert (result.status, result.stdout) == (Status.MEMORY, "began\n")
    assert "256 MiB allowed" in result.detail


async def test_a_program_with_many_idle_sockets_continues(either):
    result = await either.run(
        "import socket, time\nheld = [socket.socketpair() for _ in range(50)]\ntime.sleep(0.3)\n"
        "print(len(held))"
    )
    assert (result.status, result.stdout) == (Status.OK, "50\n")


async def test_a_process_that_cannot_be_inspected_ends_the_run(either):
    """The kernel hides a process that runs an executable, unreadable program."""
    result = await either.run(
        "import os, time\nwith open('/bin/sleep', 'rb') as file: data = file.read()\n"
        "fd = os.open('hidden', os.O_CREAT | os.O_WRONLY, 0o111)\nos.write(fd, data)\n"
        "os.close(fd)\npid = None\nwhile pid is None:\n"
        # Beside a fork bomb of another test and the same user, a fork can fail.
        "    try: pid = os.fork()\n    except BlockingIOError: time.sleep(0.05)\n"
        "if pid == 0: os.execv('hidden', ['hidden', '60'])\n"
        "time.sleep(2)\nprint('went on')"
    )
    if (
        either.isolation == "restricted" and os.getuid() == 0
    ):  # its supervisor may inspect it nevertheless
        assert result.stdout == "went on\n"
        return
    assert (result.status, result.stdout) == (Status.KILLED, ""), result.stderr
    assert "cannot be inspected" in result.detail


async def test_timers_of_the_kernel_are_few(either):
    result = await either.run(
        "import ctypes\nlibc = ctypes.CDLL(None)\ntimer = ctypes.c_void_p()\ncount = 0\n"
        "while libc.timer_create(1, None, ctypes.byref(timer)) == 0: count += 1\nprint(count)"
    )
    assert 0 < int(result.stdout) <= 256


async def test_no_program_can_hide_its_descriptors(either):
    result = await either.run(
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\n"
        "print(libc.prctl(4, 0), os.strerror(ctypes.get_errno()))"
    )
    assert result.stdout == "-1 Operation not permitted\n"


async def test_processor_time_of_all_processes_together_is_bounded(either):
    result = await either.run(FORKS.format(7) + SPIN, limits=Limits(wall_s=60.0, cpu_s=2.0))
    assert (result.status, result.stdout) == (Status.TIMEOUT, "began\n")
    assert result.detail.endswith("s of processor time, 2 s allowed")
    assert 2.0 <= result.cpu_s < 4.0


async def test_children_that_have_ended_count(either):
    result = await either.run(
        "import os, time\nprint('began', flush=True)\nwhile True:\n    if os.fork() == 0:\n"
        "        end = time.process_time() + 0.1\n        while time.process_time() < end: pass\n"
        "        os._exit(0)\n    os.wait()",
        limits=Limits(wall_s=60.0, cpu_s=1.0),
    )
    assert (result.status, result.stdout) == (Status.TIMEOUT, "began\n")
    assert result.cpu_s < 3.0


async def test_parallel_work_within_the_limit_is_allowed(either):
    result = await either.run(
        "import os\nfor _ in range(3):\n    if os.fork() == 0:\n        sum(range(10 ** 6))\n"
        "        os._exit(0)\nfor _ in range(3): os.wait()\nprint('done')",
        limits=Limits(wall_s=20.0),
    )
    assert (result.status, result.stdout) == (Status.OK, "done\n")


async def test_the_total_limit_applies_to_a_session_too(either):
    async with either.session(limits=Limits(wall_s=60.0, cpu_s=1.0)) as session:
        assert (await session.run("1 + 1")).value == "2"
        result = await session.run(FORKS.format(7) + SPIN)
        assert (result.status, result.over) == (Status.TIMEOUT, True)
        assert "1 s allowed" in result.detail


NICENESS = (
    "import os, time\nbefore = os.getpriority(os.PRIO_PROCESS, 0)\nkids = []\n"
    "for _ in range({}):\n    pid = os.fork()\n    if pid == 0:\n        while True: pass\n"
    "    kids.append(pid)\nend = time.monotonic() + {}\n"
    "steps = lambda: [os.getpriority(os.PRIO_PROCESS, pid) - before for pid in [0, *kids]]\n"
    "while time.monotonic() < end and min(steps()) < min({}, 16 - before): pass\n"
    "print(before, *steps())"
)


async def test_many_busy_processes_weigh_as_one(either):
    limits = Limits(wall_s=60.0, cpu_s=60.0)
    result = await either.run(NICENESS.format(9, 40, 11), limits=limits)
    before, *steps = (int(number) for number in result.stdout.split())
    # Ten weigh as one from 11 steps (1.25 ** 11 is 11.6); on a busy machine, fewer run.
    assert min(16, before + 4) <= before + min(steps) <= max(steps) + before <= 19
    assert max(steps) <= 11
    result = await either.run(NICENESS.format(0, 0.4, 1), limits=limits)
    assert result.stdout.split()[1:] == ["0"]


async def test_files_that_were_deleted_count_while_they_are_open(either):
    for held in ("held.append(f)", "held.append(mmap.mmap(f.fileno(), 0)); f.close()"):
        result = await either.run(
            "import mmap, os, time\nprint('began', flush=True)\nheld = []\nfor i in range(20):\n"
            "    f = open('x', 'w+b')\n    os.unlink('x')\n    f.write(bytes(8 << 20)); f.flush()\n"
            f"    {held}\n    if i == 4: print('within', flush=True); time.sleep(0.3)\n"
            "time.sleep(3)\nprint('ESCAPED')",
            limits=Limits(wall_s=30.0),
        )
        assert result.status in (Status.KILLED, Status.ERROR)
        assert result.stdout == "began\nwithin\n"
        if either.backend == "landlock":
            assert result.detail == "files exceed 64 MiB"


async def test_no_deleted_file_hides_in_a_socket(either):
    result = await either.run(
        "import os, socket\na, b = socket.socketpair()\nf = open('x', 'wb')\n"
        "try: print(socket.send_fds(a, [b'm'], [f.fileno()]))\n"
        "except PermissionError: print('refused')"
    )
    assert result.stdout == ("refused\n" if either.isolation == "restricted" else "1\n")


FILLED = (
    "import os, time\nkids = []\nfor _ in range({}):\n    kids.append(os.fork())\n"
    "    if not kids[-1]:\n        while True: pass\nend = time.monotonic() + {}\n"
    "idle = lambda: {{os.sched_getscheduler(pid) == os.SCHED_IDLE for pid in [0, *kids]}}\n"
    "while time.monotonic() < end and idle() != {{True}}: {}\n"
    "print(*idle())\n"
    "for pid in kids: os.kill(pid, 9)"
)


async def test_a_run_at_its_limit_of_busy_processes_gets_the_idle_time(either):
    bounds = Limits(wall_s=60.0, cpu_s=60.0, processes=max(4, (os.cpu_count() or 1) + 1))
    full = await either.run(FILLED.format(bounds.processes - 1, 50, "pass"), limits=bounds)
    assert (full.stdout, full.status) == ("True\n", Status.OK)


async def test_a_bomb_gets_the_smallest_share_among_unix_sessions(either):
    """In a run, /proc/self/autogroup shows the niceness of its session, which starts at 0."""
    if either.isolation == "restricted" or not Path("/proc/self/autogroup").exists():
        pytest.skip("needs a kernel with autogroup, and a session for each run")
    bounds = Limits(wall_s=60.0, cpu_s=60.0, processes=max(4, (os.cpu_count() or 1) + 1))
    result = await either.run(
        FORKS.format(bounds.processes - 1)
        + "import time\nlast = time.monotonic() + 40\nnice = ''\n"
        "while os.getpid() != 2 or time.monotonic() < last and nice != '19':\n"
        "    nice = open('/proc/self/autogroup').read().split()[-1]\nprint(nice)",
        limits=bounds,
    )
    assert result.stdout == "began\n19\n"


async def test_a_bomb_gets_its_share_back_before_it_is_killed(monkeypatch):
    refused, nices = [True, True, False], []

    def set_share(proc_fd, pid, nice):
        if pid == 4:
            raise ProcessLookupError
        if refused.pop(0):
            raise BlockingIOError
        nices.append((proc_fd, pid, nice))

    monkeypatch.setattr(processes.kernel_limits, "set_share", set_share)
    monkeypatch.setattr(processes.process_tree, "namespace_members", lambda: [4, 7])
    monkeypatch.setattr(processes.os, "kill", lambda *_: nices.append("killed"))
    monkeypatch.setattr(processes, "reap", lambda *_: None)
    config = SimpleNamespace(isolation="namespaces", proc_fd=9)
    processes.kill_everything(config, SimpleNamespace(shares_little=True))
    assert nices == [(9, 7, 0), "killed"]


@pytest.mark.parametrize(
    ("kids", "does"), [(2, "pass"), (3, "time.sleep(0.2)")], ids=["fewer", "one that waits"]
)
async def test_any_other_run_keeps_its_priority(either, kids, does):
    spare = max(4, (os.cpu_count() or 1) + 1) - 4
    bounds = Limits(wall_s=60.0, cpu_s=60.0, processes=4 + spare)
    for _ in range(5):  # on a busy machine, a waiting process is runnable for a while
        result = await either.run(FILLED.format(kids + spare, 0.4, does), limits=bounds)
        assert result.status is Status.OK
        if result.stdout == "False\n":
            return
    pytest.fail("a run that leaves room for others was taken for a fork bomb")


async def test_the_usage_of_a_process_is_read_from_its_own_lines():
    before = usage.of(os.getpid())
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    after = usage.of(os.getpid())
    assert 0.25 <= after.cpu_s - before.cpu_s < 5
    assert 0 < after.tables < after.resident < 8 << 30
    assert os.getpid() in after.running
    assert after.nice == os.getpriority(os.PRIO_PROCESS, 0)
    with pytest.raises(OSError, match="No such"):
        usage.of(2**22 + 1)
