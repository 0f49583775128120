"""Conformance: secrets, network, files, privilege, what is left of a run. And honest programs."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path

import pytest

from tools.sandbox import Status

pytestmark = pytest.mark.asyncio(loop_scope="module")

PRELUDE = """
import ctypes, errno, os, socket, sys
libc = ctypes.CDLL(None, use_errno=True)

def attempt(name, act):
    try:
        value = act()
    except (OSError, ImportError, ValueError) as error:
        print("held", name, getattr(error, "errno", None))
    else:
        print("ESCAPED", name, repr(value)[:200])

def call(number, *args):
    if libc.syscall(*(ctypes.c_long(a) for a in (number, *args))) == -1:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
"""

# What must fail, in words -> an expression that tries it.
FORBIDDEN = {
    "reading the list of users": "open('/etc/passwd').read()",
    "listing the host's folders": "os.listdir('/var')",
    "listing home folders": "os.listdir('/home')",
    "writing where the interpreter lives": "open(os.path.join(sys.prefix, 'x'), 'w')",
    "writing to /usr": "open('/usr/x', 'w')",
    "writing to the root folder": "open('/x', 'w')",
    "changing a file of the interpreter": "os.chmod(os.__file__, 0o777)",
    "a hard link to a file outside": "os.link(os.__file__, 'mine')",
    "a file outside through a symbolic link": "(os.symlink('/etc/shadow', 's'), open('s'))",
    "a device node": "os.mknod('dev', 0o60666, os.makedev(254, 0))",
    "raw memory": "open('/dev/mem', 'rb')",
    "the kernel's settings": "open('/proc/sys/kernel/hostname', 'w')",
    "the kernel's emergency keys": "open('/proc/sysrq-trigger', 'w')",
    "the environment of process 1": "open('/proc/1/environ', 'rb').read(1)",
    "the memory of process 1": "open('/proc/1/mem', 'rb')",
    "the memory of the warden": "open(f'/proc/{os.getppid()}/mem', 'rb')",
    "a TCP socket": "socket.socket()",
    "a UDP socket": "socket.socket(socket.AF_INET, socket.SOCK_DGRAM)",
    "an IPv6 socket": "socket.socket(socket.AF_INET6)",
    "a raw socket": "socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)",
    "a unix socket": "socket.socket(socket.AF_UNIX)",
    "a netlink socket": "socket.socket(16, socket.SOCK_RAW)",
    "a VSOCK socket, which no network namespace confines": "socket.socket(40, 1)",
    "the kernel's crypto sockets, which reach into the page cache": "socket.socket(38, 5)",
    "a datagram pair, which could be connected again": "socket.socketpair(1, socket.SOCK_DGRAM)",
    "becoming root": "os.setuid(0)",
    "changing the root folder": "os.chroot('.')",
    "mount": "call(165, 0, 0, 0, 0, 0)",
    "umount": "call(166, 0, 0)",
    "a new user namespace": "call(272, 0x10000000)",
    "a clone into a new user namespace": "call(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "clone3, whose flags cannot be seen": "call(435, 0, 0)",
    "entering a namespace": "call(308, 0, 0)",
    "tracing another process": "call(101, 16, os.getppid(), 0, 0)",
    "reading another process's memory": "call(310, os.getppid(), 0, 0, 0, 0, 0)",
    "taking another process's descriptor": "call(438, 3, 0, 0)",
    "limits of another process": "call(302, os.getppid() or 1, 7, 0, 0)",
    "raising a limit": "__import__('resource').setrlimit(6, (9999, 9999))",
    "kernel keyrings": "call(250, 0, 0)",
    "adding a key": "call(248, 0, 0, 0, 0)",
    "io_uring": "call(425, 8, 0)",
    "bpf": "call(321, 0, 0, 0)",
    "perf events": "call(298, 0, 0, 0, 0, 0)",
    "userfaultfd": "call(323, 0)",
    "file handles": "call(304, 0, 0, 0)",
    "the new mount interface": "call(430, 0, 0)",
    "System V shared memory": "call(29, 0, 4096, 0o1600)",
    "a file of the message queues": "open('/dev/mqueue/x', 'w')",
    "a POSIX message queue": "call(240, 0, 0o102, 0o600, 0)",
    "loading a kernel module": "call(313, 0, 0, 0)",
    "typing into a terminal": "__import__('fcntl').ioctl(0, 0x5412, b'x')",
    "another personality": "call(135, 0x0400000)",
    "calls of the x32 table": "call(0x40000000 | 39)",
    "calls that do not exist yet": "call(600)",
}


async def test_it_is_refused(either):
    attempts = [f"attempt({name!r}, lambda: {act})" for name, act in FORBIDDEN.items()]
    result = await either.run("\n".join([PRELUDE, *attempts]))
    lines = result.stdout.splitlines()
    assert [line for line in lines if not line.startswith("held ")] == []
    assert [line.removeprefix("held ").rpartition(" ")[0] for line in lines] == list(FORBIDDEN)
    assert result.status is Status.OK


async def test_a_listening_port_of_the_host_is_out_of_reach(either):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
        source = f"import socket\nsocket.create_connection({address!r}, 1)\n"
        result = await either.run(source)
    assert result.status is Status.ERROR
    assert "PermissionError" in result.stderr


async def test_a_readable_file_of_the_host_is_out_of_reach(either, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("the answer")
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.getuid() and folder != Path("/"):
            mode = folder.stat().st_mode
            if not mode & 0o005:
                folder.chmod(mode | 0o055)
    secret.chmod(0o644)
    result = await either.run(f"print(open({str(secret)!r}).read())")
    assert result.status is Status.ERROR
    assert "the answer" not in result.stdout


async def test_the_environment_is_not_the_judges(either, monkeypatch):
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


async def test_no_descriptor_is_inherited(either):
    source = (
        "import os\nheld = []\nfor fd in range(128):\n    try: os.fstat(fd); held.append(fd)\n"
        "    except OSError: pass\nprint(held)"
    )
    assert (await either.run(source)).stdout == "[0, 1, 2]\n"


async def test_no_capability_is_held(either):
    source = (
        "import ctypes, struct\nlibc = ctypes.CDLL(None)\n"
        "head = ctypes.create_string_buffer(struct.pack('=Ii', 0x20080522, 0))\n"
        "data = ctypes.create_string_buffer(24)\nprint(libc.capget(head, data), data.raw)\n"
        "print(sum(libc.prctl(23, n) for n in range(41)))"
    )
    held, bounding = (await either.run(source)).stdout.splitlines()
    sets = [f"{bytes(12)!r}"[2:-1]] * 2  # effective, permitted, inheritable, in two halves
    assert held == f"0 b'{''.join(sets)}'"
    if either.isolation == "namespaces":
        assert bounding == "0"


async def test_nobody_elses_processes_are_seen(either):
    result = await either.run(
        "import os\ntry: print(sorted(int(n) for n in os.listdir('/proc') if n.isdigit()))\n"
        "except PermissionError: print('closed')"
    )
    assert result.stdout in ("[1, 2]\n", "closed\n")


def processes_called(name: str) -> list[str]:
    found = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            if comm.read_text().strip() == name:
                found.append(comm.parent.name)
        except OSError:
            continue
    return found


DAEMON = """
import ctypes, os, signal, sys, time
def fork_away():
    if os.fork(): return False
    try: os.setsid()
    except OSError: pass
    if os.fork(): os._exit(0)
    return True
if fork_away():
    ctypes.CDLL(None).prctl(15, b"tw-daemon")
    for n in range(1, 32):
        try: signal.signal(n, signal.SIG_IGN)
        except (OSError, ValueError): pass
    print("daemon up", flush=True)
    while True: time.sleep(1)
while True:
    time.sleep(0.05)
    END
"""


@pytest.mark.parametrize("end", ["sys.exit(0)", "os._exit(3)", "os.kill(os.getpid(), 9)"])
async def test_a_daemon_is_dead_when_run_returns(either, end):
    started = time.monotonic()
    result = await either.run(DAEMON.replace("END", f"time.sleep(0.3); {end}"))
    assert "daemon up" in result.stdout
    assert processes_called("tw-daemon") == []
    assert time.monotonic() - started < 4  # and its hold on the pipes delayed nobody


@pytest.mark.parametrize(
    "act",
    ["os.kill(-1, 9)", "os.killpg(0, 9)", "os.kill(os.getppid(), 9)", "os.kill(1, 9)"],
)
async def test_killing_around_hits_only_oneself(either, act):
    neighbour = either.run("import time; time.sleep(0.5); print('alive')")
    result = await either.run(f"import os\ntry:\n    {act}\nexcept OSError: pass\n")
    assert result.status in (Status.OK, Status.KILLED)
    assert (await neighbour).stdout == "alive\n"


async def test_nothing_is_carried_from_run_to_run(either):
    leave = (
        "import builtins, os, sys\nbuiltins.print = None\nsys.leftover = 1\n"
        "open('left', 'w').write('x')\nopen('sitecustomize.py', 'w').write('1/0')\n"
        "try: open('/dev/shm/left', 'w').write('x')\nexcept OSError: pass\n"
        "try: open('/tmp/left', 'w').write('x')\nexcept OSError: pass\n"
    )
    for _ in range(8):  # more than there are waiting processes
        assert (await either.run(leave)).status is Status.OK
        result = await either.run(
            "import os, sys\nprint(os.listdir('.'), hasattr(sys, 'leftover'), "
            "any(map(os.path.exists, ('/dev/shm/left', '/tmp/left'))))"
        )
        assert result.stdout == "[] False False\n"


@pytest.mark.parametrize(
    "tree",
    [
        "for _ in range(1500): os.mkdir('d'); os.chdir('d')",
        "for n in range(500): os.makedirs(f'{n}/a', mode=0)\nos.mkdir('shut', 0)",
        "os.mkfifo('fifo')\nos.symlink('/', 'root')\nos.symlink('loop', 'loop')\n"
        "open('-rf', 'w').close()\nopen(b'\\xff\\n', 'w').close()",
    ],
    ids=["deep", "closed", "odd"],
)
async def test_any_tree_is_cleared_away(either, tree):
    result = await either.run(f"import os\ntry:\n    exec({tree!r})\nexcept OSError: pass\n")
    assert result.status in (Status.OK, Status.KILLED)
    started = time.monotonic()
    assert (await either.run("print('next')")).stdout == "next\n"
    assert time.monotonic() - started < 3


HONEST = {
    "threads": (
        "import threading\nout = []\nts = [threading.Thread(target=out.append, args=(i,)) "
        "for i in range(8)]\n[t.start() for t in ts]\n[t.join() for t in ts]\nprint(len(out))",
        "8\n",
    ),
    "a thread that outlives the last line": (
        "import threading, time\nthreading.Thread(target=lambda: "
        "(time.sleep(0.1), print('late'))).start()",
        "late\n",
    ),
    "a daemon thread": (
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), "
        "daemon=True).start()\nprint('done')",
        "done\n",
    ),
    "a guard of __main__ that exits": (
        "import sys\ndef main():\n    print('main')\n    return 0\n"
        "if __name__ == '__main__':\n    sys.exit(main())",
        "main\n",
    ),
    "exit without import": ("print('bye')\nexit()", "bye\n"),
    "exit handlers and destructors": (
        "import atexit\natexit.register(print, 'handler')\nclass A:\n"
        "    def __del__(self): print('gone')\na = A()",
        "handler\ngone\n",
    ),
    "input line by line": ("a = input()\nb = input()\nprint(b + a)", "twoone\n"),
    "caught exceptions": ("try: 1/0\nexcept ZeroDivisionError: print('caught')", "caught\n"),
    "files of its own": (
        "import tempfile, pathlib\npathlib.Path('a/b').mkdir(parents=True)\n"
        "with tempfile.TemporaryFile() as f: f.write(b'x'); f.seek(0); print(f.read())",
        "b'x'\n",
    ),
    "asyncio": (
        "import asyncio\nasync def f():\n    await asyncio.sleep(0.01)\n    return 5\n"
        "print(asyncio.run(f()))",
        "5\n",
    ),
    "subprocesses": (
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-I', '-c', "
        "'print(6)'], capture_output=True, text=True).stdout, end='')",
        "6\n",
    ),
    "a pool of threads": (
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as p: print(sum(p.map(abs, range(-9, 1))))",
        "45\n",
    ),
    "forked children": (
        "import os\npid = os.fork()\nif pid == 0: os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
        "7\n",
    ),
    "the wider standard library": (
        "import sqlite3, hashlib, decimal, csv, json, zlib, ctypes, unittest, dataclasses, "
        "heapq, secrets, uuid, email, http, xml.etree.ElementTree\nprint('imported')",
        "imported\n",
    ),
    "its own source": (
        "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))",
        "def f():\n    return 1\n\n",
    ),
    "deep recursion": (
        "import sys\nsys.setrecursionlimit(20000)\ndef f(n): return n and 1 + f(n - 1)\n"
        "print(f(15000))",
        "15000\n",
    ),
    "pickles of its own classes": (
        "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))).__name__)",
        "A\n",
    ),
}


@pytest.mark.parametrize("name", HONEST)
async def test_honest_programs_run(either, name):
    source, printed = HONEST[name]
    result = await either.run(source, stdin="one\ntwo\n")
    assert (result.status, result.stdout) == (Status.OK, printed), result


async def test_large_input_comes_whole_and_unread_input_hurts_nobody(either):
    text = "0123456789\n" * 300_000
    result = await either.run("import sys\nprint(len(sys.stdin.read()))", stdin=text)
    assert result.stdout == f"{len(text)}\n"
    assert (await either.run("print('unread')", stdin=text)).stdout == "unread\n"


async def test_files_given_can_be_read_and_imported(either):
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


async def test_processes_with_pools_and_semaphores(either):
    if either.backend == "landlock":
        pytest.skip("needs a /dev/shm of its own")
    result = await either.run(
        "from multiprocessing import Pool\ndef f(x): return x * x\n"
        "with Pool(3) as p: print(p.map(f, range(5)))"
    )
    assert result.stdout == "[0, 1, 4, 9, 16]\n", result
