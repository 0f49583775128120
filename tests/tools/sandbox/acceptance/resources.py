"""Attacks on the limits of processes, memory, files and kernel memory."""

from __future__ import annotations

from tests.tools.sandbox.acceptance.case import (
    BRIEF,
    ERROR,
    KILLED,
    MEMORY,
    OK,
    TIMEOUT,
    Program,
)
from tools.sandbox import Limits

_HALF = Limits(wall_s=40.0, memory_mb=128)
"""Half of the sandbox's limit, to spare the machine."""
_WRITE = """
def write(folder):
    for i in range(12):
        with open(f"f{i}", "wb", opener=lambda *a: os.open(*a, dir_fd=folder)) as file:
            for _ in range(15): file.write(bytes(4 << 20))
    print("ESCAPED")
"""
"""Writes ten times what files may have, in several files."""

RESOURCES: list[Program] = [
    Program(
        "a fork bomb of sleepers is stopped, by a refusal or by the watchdog",
        "step()\nn = 0\nfor n in range(2000):\n    if os.fork() == 0: time.sleep(60)\n"
        "time.sleep(60)\nprint('ESCAPED')",
        (ERROR, KILLED),
        crowds=True,
    ),
    Program(
        "children that fork endlessly are all gone afterwards",
        "step()\nwhile True:\n    try: os.fork()\n    except OSError: pass",
        (TIMEOUT, KILLED),
        limits=BRIEF,
        crowds=True,
    ),
    Program(
        "a chain of processes, each forked by the last, does not outrun the kill",
        "step()\nwhile True:\n    try:\n        if os.fork(): os._exit(0)\n"
        "    except OSError: pass",
        (OK, KILLED, TIMEOUT),
        limits=BRIEF,
        crowds=True,
    ),
    Program(
        "memory that chains of processes pass on, each forked by the last, is counted",
        "step()\ndef hop():\n    try: return os.fork()\n    except OSError: return -1\n"
        "for _ in range(6):\n    while (kid := hop()) < 0: pass\n    if kid == 0:\n"
        "        held, end = bytearray(), time.monotonic() + 20\n"
        "        while time.monotonic() < end:\n            if hop() > 0: os._exit(0)\n"
        "            if len(held) < 60 << 20: held += b'x' * (1 << 20)\n"
        "        os._exit(0)\ntime.sleep(25)\nprint('ESCAPED')",
        (MEMORY, KILLED),
        limits=_HALF,
        crowds=True,
    ),
    Program(
        "thousands of children that end at once do not delay the deadline",
        "step()\nlibc.signal(17, 1)\nforks(lambda: [libc.vfork() or libc._exit(0) "
        "for _ in iter(int, 1)], 8)\ntime.sleep(60)",
        (TIMEOUT, KILLED),
        limits=BRIEF,
        crowds=True,
    ),
    Program(
        "a thread bomb stops at the limit of processes",
        "import threading\nn = 0\ntry:\n    while n < 500:\n"
        "        threading.Thread(target=time.sleep, args=(60,), daemon=True).start(); n += 1\n"
        "except RuntimeError: pass\nstep(n <= 64)",
        (OK, KILLED),
        "^step True|^$",
        crowds=True,
    ),
    Program(
        "one process cannot allocate beyond the limit",
        "step()\nblocks = [bytearray(10 << 20) for _ in range(100)]\nprint('ESCAPED')",
        (MEMORY,),
    ),
    Program(
        "running out of memory can be caught, as anywhere",
        "try:\n    block = bytearray(1 << 30)\nexcept MemoryError:\n    step('caught')",
        (OK,),
        "^step caught",
    ),
    Program(
        "many processes together cannot use more than one may",
        "step()\nforks(lambda: [bytearray(b'x') * (80 << 20), time.sleep(60)], 8)\ntime.sleep(60)",
        (MEMORY,),
        limits=_HALF,
    ),
    Program(
        "processes that make themselves unreadable are counted too",
        "step()\nforks(lambda: [libc.prctl(4, 0), bytearray(b'x') * (80 << 20), "
        "time.sleep(60)], 8)\ntime.sleep(60)",
        (MEMORY,),
        limits=_HALF,
    ),
    Program(
        "processes whose first threads have ended are counted too",
        "import threading\nstep()\n"
        "def hold():\n    time.sleep(0.2); kept = bytearray(b'x') * (60 << 20); time.sleep(60)\n"
        "forks(lambda: [threading.Thread(target=hold).start(), libc.syscall(60, 0)], 6)\n"
        "time.sleep(60)",
        (MEMORY,),
        limits=_HALF,
    ),
    Program(
        "files of a process whose first thread has ended count",
        "import threading\nstep()\n"
        "def hold():\n    held = []\n    time.sleep(0.2)\n    for i in range(40):\n"
        "        held.append(open(f'f{i}', 'wb')); os.unlink(f'f{i}')\n"
        "        held[-1].write(bytes(4 << 20)); held[-1].flush()\n"
        "    time.sleep(4)\n    os.write(1, b'ESCAPED')\n"
        "threading.Thread(target=hold).start()\nlibc.syscall(60, 0)",
        (OK, ERROR, KILLED),
        limits=Limits(wall_s=15.0),
    ),
    Program(
        "anonymous shared memory counts as memory",
        "import mmap\nstep()\nm = mmap.mmap(-1, 400 << 20)\n"
        "for at in range(0, 400 << 20, 4096): m[at] = 1\ntime.sleep(60)\nprint('ESCAPED')",
        (MEMORY, ERROR),
        limits=_HALF,
    ),
    Program(
        "shared memory of processes that have ended counts as long as one maps it",
        "import mmap\nstep()\nms = [mmap.mmap(-1, 60 << 20) for _ in range(6)]\n"
        "for m in ms:\n    if os.fork() == 0:\n        for at in range(0, 60 << 20, 4096): "
        "m[at] = 1\n        os._exit(0)\n    os.wait()\n"
        "for m in ms:\n    for at in range(0, 60 << 20, 4096): m[at]\n"
        "time.sleep(60)\nprint('ESCAPED')",
        (MEMORY, ERROR),
        limits=_HALF,
    ),
    Program(
        "the stack cannot grow beyond the limit of memory",
        "import resource\ntry: resource.setrlimit(resource.RLIMIT_STACK, (-1, -1))\n"
        "except ValueError: pass\nstep()\n"
        "blocks = []\nwhile True: blocks.append(bytes(1 << 20))",
        (MEMORY,),
        limits=_HALF,
    ),
    Program(
        "files together cannot exceed the limit of disk",
        "step()\nfor i in range(40):\n    with open(f'f{i}', 'wb') as f: f.write(bytes(4 << 20))\n"
        "time.sleep(3)\nprint('ESCAPED')",
        (ERROR, KILLED),
    ),
    Program(
        "files count in folders that are renamed all the time",
        _WRITE + "os.makedirs('d' + '/e' * 300)\nlow = os.open('d' + '/e' * 300, os.O_RDONLY)\n"
        "def spin():\n    while True:\n        libc.rename(b'd', b'c'); libc.rename(b'c', b'd')\n"
        "step()\nforks(spin)\nwrite(low)",
        (ERROR, KILLED),
        limits=Limits(wall_s=60.0),
    ),
    Program(
        "files count among thousands of folders, which take long to measure",
        _WRITE + "for i in range(3900): os.mkdir(f'd{i}')\nstep()\n"
        "write(os.open('.', os.O_RDONLY))",
        (ERROR, KILLED),
        limits=Limits(wall_s=60.0),
    ),
    Program(
        "files count below thousands of folders inside each other",
        _WRITE + "for i in range(3900): os.mkdir('d'); os.chdir('d')\nstep()\n"
        "write(os.open('.', os.O_RDONLY))",
        (ERROR, KILLED),
        limits=Limits(wall_s=60.0),
    ),
    Program(
        "files that are deleted and still open count",
        "step()\nheld = []\nfor i in range(40):\n    held.append(open(f'f{i}', 'wb'))\n"
        "    os.unlink(f'f{i}')\n    held[-1].write(bytes(4 << 20)); held[-1].flush()\n"
        "time.sleep(10)\nprint('ESCAPED')",
        (ERROR, KILLED),
    ),
    Program(
        "files in a folder that cannot be listed count",
        "step()\nos.mkdir('d', 0o300)\nfor i in range(40):\n"
        "    with open(f'd/{i}', 'wb') as f: f.write(bytes(4 << 20))\n"
        "time.sleep(2)\nprint('ESCAPED')",
        (ERROR, KILLED),
    ),
    Program(
        "one file cannot exceed the limit of disk, sparse or not",
        "step()\nwith open('f', 'wb') as f: f.truncate(1 << 30)\nprint('ESCAPED')",
        (ERROR, KILLED),
    ),
    Program(
        "space cannot be taken beyond the limit of disk",
        "step()\nos.posix_fallocate(os.open('f', os.O_CREAT | os.O_RDWR), 0, 1 << 30)\n"
        "print('ESCAPED')",
        (ERROR, KILLED),
    ),
    Program(
        "/dev/shm is small or closed",
        "step()\nwith open('/dev/shm/x', 'wb') as f: f.write(bytes(48 << 20))\nprint('ESCAPED')",
        (ERROR, KILLED),
    ),
    Program(
        "the number of files is bounded",
        "step()\nfor i in range(20000): open(f'f{i}', 'w').close()\ntime.sleep(3)\n"
        "print('ESCAPED')",
        (ERROR, KILLED),
    ),
    Program(
        "the number of links is bounded as that of files",
        "step()\nfor i in range(20000): os.symlink('x' * 200, f'f{i}')\ntime.sleep(3)\n"
        "print('ESCAPED')",
        (ERROR, KILLED),
    ),
    Program(
        "the number of descriptors is bounded",
        "held = []\ntry:\n    while len(held) < 5000: held.append(os.open('/dev/null', 0))\n"
        "except OSError: pass\nstep(len(held) < 256)",
        (OK,),
        "^step True",
    ),
    Program(
        "descriptors in flight do not get around their limit",
        "a, b = socket.socketpair()\na.setblocking(False)\nsent = 0\ntry:\n"
        "    while sent < 5000:\n        r, w = os.pipe(); os.close(w)\n"
        "        socket.send_fds(a, [b'x'], [r]); os.close(r); sent += 1\n"
        "except OSError: pass\nstep(sent < 512)",
        (OK,),
        "^step True",
        crowds=True,
    ),
    Program(
        "socket buffers hold no more than tens of MiB of the kernel's memory",
        "held, total = [], 0\ntry:\n    while True:\n"
        "        a, b = socket.socketpair()\n        held += [a, b]\n"
        "        a.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 28)\n"
        "        a.setblocking(False)\n        try:\n"
        "            while True: total += a.send(bytes(1 << 16))\n"
        "        except BlockingIOError: pass\n"
        "except OSError: step(0 < total < 40 << 20)",
        (OK,),
        "^step True",
    ),
    Program(
        "pipes hold no more than tens of MiB of the kernel's memory",
        "import fcntl\ntotal, held = 0, []\ntry:\n    while True:\n        held.append(os.pipe())\n"
        "        try: fcntl.fcntl(held[-1][1], 1031, 1 << 20)\n        except OSError: pass\n"
        "        os.set_blocking(held[-1][1], False)\n        try:\n"
        "            while True: total += os.write(held[-1][1], bytes(1 << 16))\n"
        "        except BlockingIOError: pass\n"
        "except OSError: step(0 < total < 80 << 20)",
        (OK,),
        "^step True",
        crowds=True,
    ),
    Program(
        "timers are bounded",
        "ids, n = ctypes.c_int(), 0\nwhile n < 100000 and "
        "libc.timer_create(1, None, ctypes.byref(ids)) == 0: n += 1\nstep(n < 100000)",
        (OK,),
        "^step True",
        crowds=True,
    ),
    Program(
        "watches of files are denied every time",
        "n = 0\nwhile n < 200 and libc.inotify_init1(0) >= 0: n += 1\nstep(n)",
        (OK,),
        "^step 0$",
    ),
    Program(
        "locks on files of the host delay only other programs of the sandbox",
        "import fcntl\nstep()\nfcntl.flock(os.open(os.__file__, 0), fcntl.LOCK_EX)",
        (OK,),
    ),
    Program(
        "processes that only burn time are gone at the deadline",
        "def burn():\n    while True: pass\nstep()\nforks(burn, 6)\nburn()",
        (TIMEOUT,),
        limits=BRIEF,
    ),
    Program(
        "writing all of the machine's caches to its disks costs nothing",
        "step()\nstart = time.monotonic()\nfor _ in range(200): os.sync(); libc.syncfs(0)\n"
        "step('quick', time.monotonic() - start < 1)",
        (OK,),
        "^step quick True",
    ),
]
