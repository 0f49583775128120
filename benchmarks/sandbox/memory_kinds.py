"""Programs that allocate as much memory of one kind as possible, with the expected outcome of each.

The benchmark measures their peak; the acceptance suite has each as a case. No program allocates
more than 1.5 GB.
"""

from __future__ import annotations

from dataclasses import dataclass

PRELUDE = """
import ctypes, mmap, os, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
libc.munmap.argtypes = libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
print('began', flush=True)
MB = 1 << 20

def forks(act, times):
    for _ in range(times):
        if os.fork() == 0:
            try: act()
            finally: os._exit(0)

def touch(block):
    ctypes.memset(ctypes.addressof(ctypes.c_char.from_buffer(block)), 1, len(block))
    return block

def wait():
    time.sleep(90)
    print('ESCAPED', flush=True)
"""


@dataclass(frozen=True)
class Kind:
    """One kind of memory."""

    name: str
    counted: str
    """Description for the table of how the memory is held."""
    program: str
    of_disk: bool = False
    """Whether it is held by ``disk_mb`` and not by ``memory_mb``."""

    @property
    def source(self) -> str:
        """The program as it is sent."""
        return PRELUDE + self.program


KINDS = [
    Kind(
        "pages of its own",
        "counted, by the page",
        "forks(lambda: (touch(mmap.mmap(-1, 100 * MB, flags=2)), time.sleep(100)), 8)\nwait()",
    ),
    Kind(
        "transparent huge pages",
        "counted, by the page",
        "def grow():\n    block = mmap.mmap(-1, 100 * MB, flags=2)\n    block.madvise(14)\n"
        "    touch(block)\n    time.sleep(100)\nforks(grow, 8)\nwait()",
    ),
    Kind(
        "pages of processes that end by turns",
        "counted, until they are given back",
        "def grow():\n    block = mmap.mmap(-1, 100 * MB, flags=2); block.madvise(14)\n"
        "    touch(block)\n"
        "end = time.monotonic() + 6\nwhile time.monotonic() < end:\n"
        "    forks(grow, 2)\n    os.wait()",
    ),
    Kind(
        "huge pages of the machine's pool",
        "refused",
        "for _ in range(100):\n    at = libc.mmap(None, 8 * MB, 3, 0x40022, -1, 0)\n"
        "    if at == 2 ** 64 - 1: break\n    ctypes.memset(at, 1, 8 * MB)\n"
        "else: wait()",
    ),
    Kind(
        "shared without a name, in large pieces",
        "refused above 8 MiB",
        "held = [mmap.mmap(-1, 60 * MB) for _ in range(10)]\n"
        "for block in held:\n    touch(block)\n    block.madvise(4)\nwait()",
    ),
    Kind(
        "shared without a name, pages given up",
        "counted, 8 MiB a piece",
        "def grow():\n    held = []\n    for _ in range(20):\n"
        "        held.append(mmap.mmap(-1, 8 * MB)); touch(held[-1]); held[-1].madvise(4)\n"
        "    time.sleep(100)\nforks(grow, 8)\nwait()",
    ),
    Kind(
        "shared without a name, touched by processes that end",
        "counted, 8 MiB a piece",
        "held = []\nfor _ in range(150):\n    held.append(mmap.mmap(-1, 8 * MB))\n"
        "    forks(lambda: touch(held[-1]), 1)\n    os.wait()\nwait()",
    ),
    Kind(
        "shared without a name, all but a page unmapped",
        "counted, 8 MiB a piece",
        "def grow():\n    for _ in range(20):\n"
        "        at = libc.mmap(None, 8 * MB, 3, 0x21, -1, 0)\n"
        "        ctypes.memset(at, 1, 8 * MB)\n"
        "        libc.munmap(at + 4096, 8 * MB - 4096, 0)\n    time.sleep(100)\n"
        "forks(grow, 8)\nwait()",
    ),
    Kind(
        "shared by /dev/zero",
        "refused",
        "fd = os.open('/dev/zero', os.O_RDWR)\nfor _ in range(10):\n"
        "    at = libc.mmap(None, 60 * MB, 3, 0x1, fd, 0)\n"
        "    if at == 2 ** 64 - 1: sys.exit(3)\n"
        "    ctypes.memset(at, 1, 60 * MB)\n    libc.munmap(at + 4096, 60 * MB - 4096, 0)\nwait()",
    ),
    Kind(
        "memfd",
        "refused",
        "held = [os.memfd_create('m') for _ in range(10)]\n"
        "for fd in held:\n    for _ in range(60): os.write(fd, bytes(MB))\nwait()",
    ),
    Kind(
        "System V shared memory",
        "refused",
        "for _ in range(10):\n    number = libc.shmget(0, 60 * MB, 0o1600)\n"
        "    if number < 0: sys.exit(3)\n    libc.shmat.restype = ctypes.c_void_p\n"
        "    ctypes.memset(libc.shmat(number, None, 0), 1, 60 * MB)\nwait()",
    ),
    Kind(
        "POSIX shared memory",
        "a file system of 16 MiB, or refused",
        "for n in range(10):\n    with open(f'/dev/shm/m{n}', 'wb') as file:\n"
        "        for _ in range(60): file.write(bytes(MB))\nwait()",
    ),
    Kind(
        "files",
        "a file system of `disk_mb`; `landlock` counted",
        "def grow():\n    for n in range(60):\n"
        "        with open(f'{os.getpid()}-{n}', 'wb') as file:\n"
        "            for _ in range(2): file.write(bytes(MB))\n"
        "forks(grow, 2)\nos.wait(); os.wait()\nsys.exit(3)",
        of_disk=True,
    ),
    Kind(
        "files, space asked for ahead",
        "as files; `landlock` refused",
        "for n in range(100):\n    fd = os.open(f'f{n}', os.O_CREAT | os.O_RDWR)\n"
        "    if libc.fallocate(fd, 0, ctypes.c_long(0), ctypes.c_long(10 * MB)): sys.exit(3)\n"
        "wait()",
        of_disk=True,
    ),
    Kind(
        "deleted files that are open",
        "as files",
        "held = []\nfor n in range(120):\n    held.append(open('x', 'wb')); os.unlink('x')\n"
        "    for _ in range(4): held[-1].write(bytes(MB))\n    held[-1].flush()\nwait()",
        of_disk=True,
    ),
    Kind(
        "deleted files of which a page is mapped",
        "as files; `landlock` as a user: each as the largest file",
        "for n in range(120):\n    fd = os.open('x', os.O_CREAT | os.O_RDWR); os.unlink('x')\n"
        "    os.write(fd, bytes(4 * MB))\n    libc.mmap(None, 4096, 1, 0x1, fd, 0)\n"
        "    os.close(fd)\nwait()",
        of_disk=True,
    ),
    Kind(
        "sockets",
        "counted, 208 KiB each",
        "def grow():\n    held = []\n    try:\n        while True:\n"
        "            held += socket.socketpair()\n            held[-1].setblocking(False)\n"
        "            try:\n                while True: held[-1].send(bytes(1 << 16))\n"
        "            except BlockingIOError: pass\n    except OSError: time.sleep(100)\n"
        "forks(grow, 15)\nwait()",
    ),
    Kind(
        "pipes",
        "counted, 64 KiB each; larger ones refused",
        "import fcntl\ndef grow():\n    block = mmap.mmap(-1, 12 * MB, flags=2); touch(block)\n"
        "    held = []\n    try:\n        while True:\n"
        "            held.append(os.pipe()); fcntl.fcntl(held[-1][1], 1031, MB)\n"
        "            os.set_blocking(held[-1][1], False)\n"
        "            try:\n                while True: os.write(held[-1][1], bytes(1 << 16))\n"
        "            except BlockingIOError: pass\n    except OSError: time.sleep(100)\n"
        "forks(grow, 15)\nwait()",
    ),
    Kind(
        "pages passed on from files that shrink",
        "refused (sendfile, splice, tee, vmsplice)",
        "held = []\nfd = os.open('x', os.O_CREAT | os.O_RDWR)\nfor _ in range(40):\n"
        "    os.pwrite(fd, bytes(16 * 4096), 0)\n    held.append(os.pipe())\n"
        "    os.sendfile(held[-1][1], fd, 0, 16 * 4096)\n    os.ftruncate(fd, 0)\nwait()",
    ),
    Kind(
        "descriptors of a thread that has a table of its own",
        "refused",
        "held = [socket.socketpair() for _ in range(50)]\nstack = ctypes.create_string_buffer(MB)\n"
        "top = ctypes.c_void_p(ctypes.addressof(stack) + MB - 64)\n"
        "if libc.clone(libc.pause, top, 0x10B00 | 0x40000, None) < 0: sys.exit(3)\nwait()",
    ),
    Kind(
        "page tables",
        "counted",
        "def grow():\n    for k in range(16_000):\n"
        "        at = libc.mmap(0x100000000000 + (k << 30), 4096, 1, 0x100022, -1, 0)\n"
        "        ctypes.string_at(at, 1)\n    time.sleep(100)\nforks(grow, 8)\nwait()",
    ),
    Kind(
        "descriptions of mappings",
        "counted, 512 bytes each; too many end the run",
        "def grow():\n    at = libc.mmap(None, 30_000 * 4096, 0, 0x22, -1, 0)\n"
        "    for n in range(0, 30_000, 2): libc.mprotect(ctypes.c_void_p(at + n * 4096), 4096, 1)\n"
        "    held = touch(mmap.mmap(-1, 100 * MB, flags=2)); time.sleep(100)\n"
        "forks(grow, 13)\nwait()",
    ),
    Kind(
        "pages of processes whose first thread has ended",
        "counted, by the page",
        "import threading\ndef hold():\n    time.sleep(0.1)\n"
        "    held = touch(mmap.mmap(-1, 100 * MB, flags=2)); time.sleep(100)\n"
        "forks(lambda: (threading.Thread(target=hold).start(), libc.syscall(60, 0)), 6)\nwait()",
    ),
]
