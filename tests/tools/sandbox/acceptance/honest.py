"""Honest programs and submissions, which a sandbox must run correctly."""

from __future__ import annotations

import re

from tests.tools.sandbox.acceptance.case import OK, HonestSubmission, Program
from tools.sandbox import Limits

_SEMAPHORES = {"restricted": "semaphores of multiprocessing need a /dev/shm of the run's own"}
_SESSIONS = {"restricted": "a run stays one process group"}
_METADATA = {"restricted": "attributes of files cannot be changed"}


def honest(
    name: str, source: str, printed: str, *, not_promised: dict[str, str] | None = None
) -> Program:
    """A program with its whole expected output."""
    return Program(
        f"honest: {name}",
        source,
        (OK,),
        rf"\A{re.escape(printed)}\Z",
        stdin="one\ntwo\n",
        prelude=False,
        not_promised=not_promised or {},
    )


HONEST: list[Program] = [
    honest(
        "threads",
        "import threading\nout = []\nts = [threading.Thread(target=out.append, args=(i,)) "
        "for i in range(8)]\n[t.start() for t in ts]\n[t.join() for t in ts]\nprint(len(out))",
        "8\n",
    ),
    honest(
        "children in their own sessions, each ended as a whole",
        "import os, signal, subprocess, sys\nleader = os.fork()\nif leader == 0:\n"
        "    os.setsid()\n    sys.exit(0 if os.getpgrp() == os.getpid() else 1)\n"
        "print(os.waitpid(leader, 0)[1])\n"
        "child = subprocess.Popen(['sh', '-c', 'sleep 60 & wait'], start_new_session=True)\n"
        "os.killpg(os.getpgid(child.pid), signal.SIGTERM)\nprint(child.wait())",
        "0\n-15\n",
        not_promised=_SESSIONS,
    ),
    honest(
        "a thread that outlives the last line",
        "import threading, time\nthreading.Thread(target=lambda: "
        "(time.sleep(0.1), print('late'))).start()",
        "late\n",
    ),
    honest(
        "a program that closes its output at the end",
        "import sys\nprint('done')\nsys.stdout.close()",
        "done\n",
    ),
    honest(
        "a program that drops its output at the end",
        "import sys\nprint('done', flush=True)\nsys.stdout = None",
        "done\n",
    ),
    honest(
        "a daemon thread",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), "
        "daemon=True).start()\nprint('done')",
        "done\n",
    ),
    honest(
        "a guard of __main__ that exits",
        "import sys\ndef main():\n    print('main')\n    return 0\n"
        "if __name__ == '__main__':\n    sys.exit(main())",
        "main\n",
    ),
    honest("exit without import", "print('bye')\nexit()", "bye\n"),
    honest(
        "exit handlers and destructors",
        "import atexit\natexit.register(print, 'handler')\nclass A:\n"
        "    def __del__(self): print('gone')\na = A()",
        "handler\ngone\n",
    ),
    honest("input line by line", "a = input()\nb = input()\nprint(b + a)", "twoone\n"),
    honest("input by iteration", "import sys\nfor line in sys.stdin: print(len(line))", "4\n4\n"),
    honest("input by descriptor", "print(open(0).read().split())", "['one', 'two']\n"),
    honest(
        "input by fileinput",
        "import fileinput\nprint([line.strip() for line in fileinput.input()])",
        "['one', 'two']\n",
    ),
    honest(
        "caught exceptions",
        "try: 1/0\nexcept ZeroDivisionError: print('caught')\n"
        "try: exit(3)\nexcept SystemExit as e: print(e.code)",
        "caught\n3\n",
    ),
    honest(
        "its own files",
        "import tempfile, pathlib\npathlib.Path('a/b').mkdir(parents=True)\n"
        "with tempfile.TemporaryFile() as f: f.write(b'x'); f.seek(0); print(f.read())\n"
        "with tempfile.NamedTemporaryFile('w') as f: f.write('y'); f.flush(); "
        "print(open(f.name).read())\n"
        "with tempfile.TemporaryDirectory() as d: print(pathlib.Path(d).is_dir())",
        "b'x'\ny\nTrue\n",
    ),
    honest(
        "files copied with their attributes",
        "import os, shutil\nopen('a', 'w').write('x')\n"
        "os.chmod('a', 0o640)\nshutil.copy2('a', 'b')\n"
        "print(oct(os.stat('b').st_mode))",
        "0o100640\n",
        not_promised=_METADATA,
    ),
    honest(
        "archives",
        "import tarfile, zipfile\nopen('a', 'w').write('x')\n"
        "with zipfile.ZipFile('z', 'w') as z: z.write('a')\nprint(zipfile.ZipFile('z').read('a'))\n"
        "with tarfile.open('t', 'w:gz') as t: t.add('a')\nprint(tarfile.open('t').getnames())",
        "b'x'\n['a']\n",
    ),
    honest(
        "a database",
        "import sqlite3\nc = sqlite3.connect('x.db')\nc.execute('create table t (a)')\n"
        "c.executemany('insert into t values (?)', [(i,) for i in range(9)])\nc.commit()\n"
        "print(c.execute('select sum(a) from t').fetchone())",
        "(36,)\n",
    ),
    honest(
        "asyncio",
        "import asyncio\nasync def f(n):\n    await asyncio.sleep(0.01)\n    return n\n"
        "async def main(): return sum(await asyncio.gather(*map(f, range(5))))\n"
        "print(asyncio.run(main()))",
        "10\n",
    ),
    honest(
        "asyncio with processes and threads",
        "import asyncio\nasync def main():\n"
        "    p = await asyncio.create_subprocess_exec('echo', 'hi', stdout=-1)\n"
        "    print((await p.communicate())[0], await asyncio.to_thread(len, 'abc'))\n"
        "asyncio.run(main())",
        "b'hi\\n' 3\n",
    ),
    honest(
        "subprocesses",
        "import subprocess, sys\nprint(subprocess.run([sys.executable, '-I', '-c', "
        "'print(6)'], capture_output=True, text=True).stdout, end='')\n"
        "print(subprocess.check_output('echo $((6 * 7))', shell=True))",
        "6\nb'42\\n'\n",
    ),
    honest(
        "a pool of threads",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "with ThreadPoolExecutor(4) as p: print(sum(p.map(abs, range(-9, 1))))",
        "45\n",
    ),
    honest(
        "pools of processes",
        "from multiprocessing import Pool\nfrom concurrent.futures import ProcessPoolExecutor\n"
        "def f(x): return x * x\nwith Pool(3) as p: print(p.map(f, range(5)))\n"
        "with ProcessPoolExecutor(2) as p: print(list(p.map(f, range(3))))",
        "[0, 1, 4, 9, 16]\n[0, 1, 4]\n",
        not_promised=_SEMAPHORES,
    ),
    honest(
        "a process of multiprocessing with a pipe",
        "from multiprocessing import Pipe, Process\na, b = Pipe()\n"
        "p = Process(target=b.send, args=({'x': 1},))\np.start()\nprint(a.recv())\np.join()\n"
        "print(p.exitcode)",
        "{'x': 1}\n0\n",
    ),
    honest(
        "forked children",
        "import os\npid = os.fork()\nif pid == 0: os._exit(7)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))",
        "7\n",
    ),
    honest(
        "alarms",
        "import signal, time\ndef late(*_): raise TimeoutError\n"
        "signal.signal(signal.SIGALRM, late)\n"
        "signal.setitimer(signal.ITIMER_REAL, 0.05)\ntry: time.sleep(9)\n"
        "except TimeoutError: print('in time')",
        "in time\n",
    ),
    honest(
        "the wider standard library",
        "import sqlite3, hashlib, decimal, csv, json, zlib, ctypes, unittest, dataclasses, "
        "heapq, secrets, uuid, email, http.client, xml.etree.ElementTree, ssl, logging, "
        "argparse, optparse, curses, locale, gettext, doctest, pdb, cProfile, zoneinfo, lzma, bz2\n"
        "print(hashlib.sha256(b'a').hexdigest()[:8], zlib.crc32(b'a'), len(uuid.uuid4().hex), "
        "len(secrets.token_bytes(9)))",
        "ca978112 3904355907 32 9\n",
    ),
    honest(
        "exact arithmetic",
        "from decimal import Decimal, getcontext\nfrom fractions import Fraction\n"
        "getcontext().prec = 30\nprint(Decimal(1) / 7, sum(Fraction(1, n) for n in range(1, 6)))\n"
        "print(len(str(7 ** 5000)), pow(3, 10 ** 30, 10 ** 9 + 7))",
        "0.142857142857142857142857142857 137/60\n4226 " + str(pow(3, 10**30, 10**9 + 7)) + "\n",
    ),
    honest(
        "classes, generators, patterns",
        "from dataclasses import dataclass, field\nimport enum, heapq, itertools\n"
        "@dataclass(order=True)\nclass P:\n    x: int\n    y: list = field(default_factory=list)\n"
        "class C(enum.Enum): A = 1\ndef g():\n    got = yield 1\n    yield from range(got)\n"
        "it = g(); next(it)\nh = [P(3), P(1), P(2)]\nheapq.heapify(h)\n"
        "match heapq.heappop(h):\n    case P(x=n): print(n, C(1), [it.send(2), *it])\n"
        "print(*itertools.accumulate(range(5)))",
        "1 C.A [0, 1]\n0 1 3 6 10\n",
    ),
    honest(
        "its own source",
        "import inspect\ndef f():\n    return 1\nprint(inspect.getsource(f))",
        "def f():\n    return 1\n\n",
    ),
    honest(
        "its own source behind a form feed",
        "x = 1\n\f\nimport inspect\ndef f():\n    return '\x1c'\nprint(inspect.getsource(f)[:7])",
        "def f()\n",
    ),
    honest("a mark of byte order at the start", "\ufeffprint('read')", "read\n"),
    honest("a declaration of encoding", "# -*- coding: latin-1 -*-\nprint('\u00e9')", "é\n"),
    honest("lines that end as on Windows", "if True:\r\n    print('''a\r\nb''')\r\n", "a\nb\n"),
    honest(
        "deep recursion",
        "import sys\nsys.setrecursionlimit(20000)\ndef f(n): return n and 1 + f(n - 1)\n"
        "print(f(15000))",
        "15000\n",
    ),
    honest(
        "deep recursion in a thread with a large stack",
        "import resource, sys, threading\nsys.setrecursionlimit(1 << 25)\n"
        "resource.setrlimit(resource.RLIMIT_STACK, (1 << 28, resource.RLIM_INFINITY))\n"
        "threading.stack_size(1 << 26)\ndef f(n): return n and 1 + f(n - 1)\n"
        "t = threading.Thread(target=lambda: print(f(90000)))\nt.start()\nt.join()",
        "90000\n",
    ),
    honest(
        "pickles of its own classes",
        "import copy, pickle\nclass A: pass\n"
        "print(type(copy.deepcopy(pickle.loads(pickle.dumps(A())))).__name__)",
        "A\n",
    ),
    honest(
        "unicode", "print('h\\u00e9llo', '😀', 'ß'.upper(), ascii('é'))", "héllo 😀 SS '\\xe9'\n"
    ),
    honest(
        "C functions that call back",
        "import ctypes\nf = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), "
        "ctypes.POINTER(ctypes.c_int))(lambda a, b: a[0] - b[0])\n"
        "x = (ctypes.c_int * 4)(3, 1, 4, 1)\nctypes.CDLL(None).qsort(x, 4, 4, f)\nprint(list(x))",
        "[1, 1, 3, 4]\n",
    ),
    honest(
        "its own unit tests",
        "import sys, unittest\nclass T(unittest.TestCase):\n    def test(self): "
        "self.assertEqual(1 + 1, 2)\nr = unittest.main(exit=False, argv=['x']).result\n"
        "print(r.testsRun, r.wasSuccessful())",
        "1 True\n",
    ),
    honest(
        "its own doctests",
        "import doctest\ndef f(x):\n    '''\n    >>> f(2)\n    4\n    '''\n    return 2 * x\n"
        "print(doctest.testmod())",
        "TestResults(failed=0, attempted=1)\n",
    ),
    honest(
        "a replaced standard output",
        "import contextlib, io\nb = io.StringIO()\n"
        "with contextlib.redirect_stdout(b): print('x')\nprint(repr(b.getvalue()))",
        "'x\\n'\n",
    ),
    honest("output below the cap", "print('x' * 1_000_000)", "x" * 1_000_000 + "\n"),
    Program(
        "honest: a slow start",
        "import time\ntime.sleep(1.5)\nprint('there')",
        shows="^there$",
        limits=Limits(wall_s=30.0),
        prelude=False,
    ),
]

HONEST_SUBMISSIONS: list[HonestSubmission] = [
    HonestSubmission("plain", "def f(x): return x * x + 7"),
    HonestSubmission("a lambda", "f = lambda x: x * x + 7"),
    HonestSubmission(
        "with prints", "print('loading')\ndef f(x):\n    print('called', x)\n    return x * x + 7"
    ),
    HonestSubmission(
        "with a guard that exits",
        "import sys\ndef f(x): return x * x + 7\nif __name__ == '__main__': sys.exit(1)",
    ),
    HonestSubmission("as a float", "def f(x): return float(x * x + 7)"),
    HonestSubmission(
        "as a fraction's numerator",
        "from fractions import Fraction\ndef f(x): return (Fraction(x) ** 2 + 7).numerator",
    ),
    HonestSubmission(
        "with a cache", "import functools\n@functools.cache\ndef f(x): return x * x + 7"
    ),
    HonestSubmission(
        "in a class", "class S:\n    def __call__(self, x): return x * x + 7\nf = S()"
    ),
    HonestSubmission("a bound method", "class S:\n    def g(self, x): return x * x + 7\nf = S().g"),
    HonestSubmission(
        "with threads",
        "from concurrent.futures import ThreadPoolExecutor\n"
        "def f(x):\n    with ThreadPoolExecutor(2) as p: return sum(p.map(int, [x * x, 7]))",
    ),
    HonestSubmission(
        "with a daemon thread that continues",
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()\n"
        "def f(x): return x * x + 7",
    ),
    HonestSubmission(
        "with a thread that continues",
        "import threading, time\nthreading.Thread(target=time.sleep, args=(9,)).start()\n"
        "def f(x): return x * x + 7",
    ),
    HonestSubmission(
        "with a child that continues",
        "import os, time\nif os.fork() == 0: time.sleep(60); os._exit(0)\n"
        "def f(x): return x * x + 7",
    ),
    HonestSubmission(
        "with caught exceptions",
        "def f(x):\n    try: return 1 / 0\n    except ZeroDivisionError: return x * x + 7",
    ),
    HonestSubmission(
        "with an exit that is caught",
        "import sys\ndef f(x):\n    try: sys.exit(1)\n    except SystemExit: return x * x + 7",
    ),
    HonestSubmission(
        "with files",
        "def f(x):\n    open('n', 'w').write(str(x))\n    return int(open('n').read()) ** 2 + 7",
    ),
    HonestSubmission("as a subclass of int", "class I(int): pass\ndef f(x): return I(x * x + 7)"),
    HonestSubmission(
        "as a member of an enumeration of integers",
        "import enum\ndef f(x): return enum.IntEnum('E', {'A': x * x + 7}).A",
    ),
    HonestSubmission(
        "with asyncio",
        "import asyncio\nasync def g(x): return x * x + 7\ndef f(x): return asyncio.run(g(x))",
    ),
    HonestSubmission(
        "with a child process",
        "import subprocess, sys\ndef f(x): return int(subprocess.run([sys.executable, '-I', '-c', "
        "f'print({x} * {x} + 7)'], capture_output=True).stdout)",
    ),
    HonestSubmission(
        "with a recursion limit",
        "import sys\nsys.setrecursionlimit(10000)\n"
        "def g(n): return 0 if n == 0 else 1 + g(n - 1)\n"
        "def f(x): return x * x + 7 + g(5000) - 5000",
    ),
    HonestSubmission(
        "with a replaced standard output",
        "import io, sys\nsys.stdout = io.StringIO()\n"
        "def f(x):\n    print('x')\n    return x * x + 7",
    ),
    HonestSubmission(
        "with closed standard streams", "import sys\nsys.stdout.close()\ndef f(x): return x * x + 7"
    ),
    HonestSubmission(
        "with a global generator",
        "def g():\n    x = yield\n    while True: "
        "x = yield x * x + 7\nit = g(); next(it)\ndef f(x): return it.send(x)",
    ),
    HonestSubmission(
        "with its own type named like a builtin",
        "class list(list): pass\ndef f(x): return sum(list([x * x, 7]))",
    ),
    HonestSubmission(
        "with an exception that is kept",
        "kept = []\ndef f(x):\n    try: raise KeyError\n"
        "    except KeyError as e: kept.append(e)\n    return x * x + 7",
    ),
    HonestSubmission("behind a mark of byte order", "\ufeffdef f(x): return x * x + 7"),
]
