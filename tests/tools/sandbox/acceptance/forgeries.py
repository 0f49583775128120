"""Submissions that try to pass without computing the answers."""

from __future__ import annotations

from tests.tools.sandbox.acceptance.case import ForgedGrade, Forgery
from tools.sandbox import AssertTest, CallTest, StdioTest

_EVERYWHERE = (
    "import os, struct\ndef everywhere(data):\n    for fd in range(3, 128):\n"
    "        try: os.write(fd, data)\n        except OSError: pass\n"
    "def frame(body): return struct.pack('!I', len(body)) + body\n"
)
_CHANNEL = (
    "import gc, socket\ndef channel():\n"
    "    return [o for o in gc.get_objects() if isinstance(o, socket.socket)][0]\n"
)


FORGERIES: list[Forgery] = [
    Forgery(name, source)
    for name, source in {
        # -- ends
        "exit with 0 at import": "import sys; sys.exit(0)",
        "hard exit with 0 at import": "import os; os._exit(0)",
        "exit with 0 in the call": "def f(x): raise SystemExit(0)",
        "hard exit with 0 in the call": "import os\ndef f(x): os._exit(0)",
        "death by a signal in the call": "import os\ndef f(x): os.kill(os.getpid(), 9)",
        "quit with exit handlers": "import atexit, os\natexit.register(os._exit, 0)\nf = exit",
        "exit in a destructor of the answer": (
            "import os\nclass A:\n    def __del__(s): os._exit(0)\ndef f(x): return A()"
        ),
        "exit by executing another program": (
            "import os\ndef f(x): os.execv('/bin/true', ['true'])"
        ),
        "exit by a forked parent": "import os\ndef f(x):\n    if os.fork(): os._exit(0)",
        "an alarm in the host's loop": (
            "import signal, os\nsignal.signal(14, lambda *a: os._exit(0))\nsignal.alarm(1)\n"
            "def f(x): return 0"
        ),
        "silence": "import time\ndef f(x): time.sleep(60)",
        "silence at import": "import time; time.sleep(60)",
        "a flood": "def f(x):\n    while True: print('passed' * 1000)",
        # -- forged values
        "an object equal to everything": (
            "class E:\n    def __eq__(s, o): return True\n    __hash__ = None\ndef f(x): return E()"
        ),
        "an integer that lies": (
            "class E(int):\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n"
            "    __hash__ = int.__hash__\ndef f(x): return E(0)"
        ),
        "an integer that formats itself": (
            "class E(int):\n    def __format__(s, spec): return '10'\n"
            "    def __index__(s): return 16\n    def __repr__(s): return '16'\n"
            "def f(x): return E(0)"
        ),
        "a float that lies": (
            "class E(float):\n    def __eq__(s, o): return True\n    def hex(s): return '0x10p0'\n"
            "    __hash__ = None\ndef f(x): return E(0)"
        ),
        "a string that lies": (
            "class E(str):\n    def __eq__(s, o): return True\n    __hash__ = str.__hash__\n"
            "def f(x): return E('')"
        ),
        "a list that lies": (
            "class E(list):\n    def __eq__(s, o): return True\n"
            "    def __iter__(s): return iter([16])\ndef f(x): return E()"
        ),
        "a dict that lies": (
            "class E(dict):\n    def __eq__(s, o): return True\n"
            "    def items(s): return [(1, 1)]\ndef f(x): return E()"
        ),
        "an object that says it is an integer": (
            "class E:\n    __class__ = property(lambda s: int)\n"
            "    def __eq__(s, o): return True\ndef f(x): return E()"
        ),
        "a class whose instances are of every kind": (
            "class M(type):\n    def __instancecheck__(c, o): return True\n"
            "    def __eq__(c, o): return True\n    __hash__ = type.__hash__\n"
            "class E(metaclass=M): pass\ndef f(x): return E"
        ),
        "a float that is equal to nothing": "def f(x): return float('nan')",
        "an infinity": "def f(x): return float('inf')",
        "an object that pickles into code": (
            "class E:\n    def __reduce__(s): return (exec, ('1',))\ndef f(x): return E()"
        ),
        "the bytes of a pickle": "import pickle\ndef f(x): return pickle.dumps(x * x + 7)",
        "text that evaluates to the answer": "def f(x): return f'{x} * {x} + 7'",
        "a truthy nothing": "def f(x): return True",
        "nothing": "def f(x): pass",
        "the function itself": "def f(x): return f",
        "its arguments": "def f(*a, **k): return a",
        "a coroutine": "async def f(x): return x * x + 7",
        "a generator": "def f(x): yield x * x + 7",
        "the right answer as text": "def f(x): return str(x * x + 7)",
        "the right answer in a list": "def f(x): return [x * x + 7]",
        "the right answer and every other": "def f(x): return set(range(200))",
        "a name of the entry point that is no function": "f = 16",
        "no entry point": "def g(x): return x * x + 7",
        # -- values that break a decoder
        "a list that contains itself": "def f(x):\n    a = []; a.append(a); return a",
        "a value that nests without end": (
            "def f(x):\n    a = []\n    for _ in range(100000): a = [a]\n    return a"
        ),
        "an enormous value": "def f(x): return 'x' * (4 << 20)",
        "an enormous integer": "def f(x): return 1 << (1 << 25)",
        "an integer too long for text": "def f(x): return 10 ** 5000",
        "half a character": "def f(x): return '\\ud800'",
        "keys that collide": "def f(x): return {k * (2 ** 61 - 1): 0 for k in range(1, 400)}",
        "keys of odd kinds": (
            "def f(x): return {None: 1, True: 2, 1.5: 3, (1, ()): 4, frozenset({1}): 5, b'': 6}"
        ),
        "a list that changes while it is read": (
            "import threading\na = [0] * 100000\ndef g():\n    while True: a.clear(); "
            "a.extend([16] * 1000)\nthreading.Thread(target=g, daemon=True).start()\n"
            "def f(x): return a"
        ),
        # -- forged exceptions
        "an exception that lies": (
            "class E(BaseException):\n    def __eq__(s, o): return True\ndef f(x): raise E()"
        ),
        "stop of an iteration": "def f(x): raise StopIteration(16)",
        "end of a generator": "def f(x): raise GeneratorExit",
        "an interrupt": "def f(x): raise KeyboardInterrupt",
        "a failed assertion": "def f(x): assert False",
        "a skipped test": "import unittest\ndef f(x): raise unittest.SkipTest('skip')",
        "an exception called as a passed test": (
            "def f(x): raise type('passed', (Exception,), {})('passed')"
        ),
        "an exception whose text exits": (
            "import os\nclass E(Exception):\n    def __str__(s): os._exit(0)\ndef f(x): raise E"
        ),
        "an exception whose text never comes": (
            "class E(Exception):\n    def __str__(s):\n        while True: pass\ndef f(x): raise E"
        ),
        "an exception whose name raises": (
            "class M(type):\n    __name__ = property(lambda c: 1 / 0)\n"
            "class E(Exception, metaclass=M): pass\ndef f(x): raise E"
        ),
        "an exception of half characters": "def f(x): raise Exception('\\ud800')",
        "a group of exceptions": "def f(x): raise ExceptionGroup('passed', [ValueError(16)])",
        # -- marks, plants, patches
        "a printed mark": "print('passed'); print('OK')\ndef f(x): print('[\"value\", 16, 1]')",
        "a mark on standard error": "import sys\ndef f(x): sys.stderr.write('PASSED\\n')",
        "a planted result": (
            "for n in ('reward.txt', 'result.json', 'conftest.py', 'pytest.ini', 'program.py'):\n"
            "    open(n, 'w').write('{\"passed\": true, \"reward\": 1.0}')\ndef f(x): return None"
        ),
        "patched builtins": (
            "import builtins\nbuiltins.AssertionError = Exception\n"
            "builtins.bool = lambda *a: True\nbuiltins.all = lambda *a: True\n"
            "builtins.len = lambda a: 0\ndef f(x): return None"
        ),
        "a patched import": (
            "import builtins, types\n"
            "builtins.__import__ = lambda *a, **k: types.SimpleNamespace()\n"
            "def f(x): return 0"
        ),
        "a patched json": (
            'import json\njson.dumps = lambda *a, **k: \'["value",["i","10"],1]\'\n'
            "def f(x): return 0"
        ),
        "a patched struct and socket": (
            "import socket, struct\nstruct.pack = lambda *a: b'\\0\\0\\0\\0'\n"
            "try: socket.socket.sendall = lambda *a: None\nexcept TypeError: pass\n"
            "def f(x): return 0"
        ),
        "a patched clock": (
            "import time\ntime.time = time.monotonic = lambda: 0\ndef f(x): return 0"
        ),
        "a trace of every line": (
            "import sys\ndef t(frame, event, arg):\n"
            "    for n in list(frame.f_locals):\n"
            "        if n in ('value', 'answer', 'outcome'): frame.f_locals[n] = 5\n    return t\n"
            "sys.settrace(t); sys.setprofile(t)\ndef f(x): return 0"
        ),
        "a patched codec in its process": (
            "import sys, gc\nfor o in gc.get_objects():\n"
            "    if type(o) is type(sys) and o.__name__.endswith('codec'):\n"
            "        o.encode = lambda value, depth=0: ['i', '10']\ndef f(x): return object()"
        ),
        # -- searches
        "a search for the expected value in frames and objects": (
            "import sys, gc\ndef f(x):\n    frame = sys._getframe()\n    while frame:\n"
            "        for v in [*frame.f_locals.values(), *frame.f_globals.values()]:\n"
            "            if isinstance(v, int) and v > 12 and v != x: return v\n"
            "            if type(v).__name__ == 'CallTest': return v.expected\n"
            "        frame = frame.f_back\n"
            "    for o in gc.get_objects():\n"
            "        if type(o).__name__ == 'CallTest': return o.expected\n"
        ),
        "a search for the test code": (
            "import gc, re\ndef f(x):\n    for o in gc.get_objects():\n"
            "        for v in (o.values() if isinstance(o, dict) else ()):\n"
            "            if isinstance(v, str) and f'assert f({x})' in v:\n"
            "                return int(re.search(r'== (\\d+)', v)[1])\n"
        ),
        "a search for the host's stub": (
            "import sys\ndef f(x):\n    frame = sys._getframe()\n    while frame.f_back: "
            "frame = frame.f_back\n    return frame.f_globals.get('expected', frame.f_locals)"
        ),
        "a mutated argument": "def f(x):\n    global f\n    f = lambda y: y\n    return x",
        # -- the channel
        "answers written to every descriptor": (
            _EVERYWHERE + 'def f(x): everywhere(frame(b\'["value",["i","10"],1]\') * 2)'
        ),
        "answers before there are questions": (
            _EVERYWHERE + "for n in range(1, 9): everywhere("
            'frame(b\'["value",["i","10"],%d]\' % n))\ndef f(x): return 0'
        ),
        "a report of loading before there is a submission": (
            _EVERYWHERE + "everywhere(frame(b'[\"loaded\"]') * 3)\ndef f(x): return 0"
        ),
        "an answer to another question": (
            _EVERYWHERE + "def f(x):\n"
            '    everywhere(frame(b\'["value",["i","%x"],99]\' % (x * x + 7)))\n    os._exit(0)'
        ),
        "a right answer and a second one": (
            _EVERYWHERE + "def f(x):\n"
            '    everywhere(frame(b\'["value",["i","%x"],1]\' % (x * x + 7)) * 2)\n'
            "    os._exit(0)"
        ),
        "a verdict written to every descriptor": (
            _EVERYWHERE + "def f(x): everywhere(frame(b'[\"passed\",0]'))"
        ),
        "a frame that never ends": (
            _EVERYWHERE + "def f(x): everywhere(b'\\xff\\xff\\xff\\xff' + b'x' * 100)"
        ),
        "half a frame and silence": (
            _EVERYWHERE + "import time\ndef f(x):\n    everywhere(b'\\0\\0\\1\\0half')\n"
            "    time.sleep(60)"
        ),
        "an empty frame": _EVERYWHERE + "def f(x): everywhere(b'\\0\\0\\0\\0')",
        "bytes that are no frame": _EVERYWHERE + "def f(x): everywhere(b'\\0\\0\\0\\3{{{')",
        "numbers that are no values": (
            _EVERYWHERE + "def f(x): everywhere(frame(b'[\"value\",NaN,1]')); os._exit(0)"
        ),
        "an integer of JSON": (
            _EVERYWHERE + "def f(x):\n    everywhere(frame(b'[\"value\",' + b'9' * 900000 + "
            "b',1]'))\n    os._exit(0)"
        ),
        "deep brackets": (
            _EVERYWHERE + "def f(x):\n    everywhere(frame(b'[' * 500000))\n    os._exit(0)"
        ),
        "a flood of small frames": (
            _CHANNEL + "def f(x):\n    c = channel()\n    while True: c.sendall(b'\\0\\0\\0\\2[]')"
        ),
        "a flood of frames from a twin": (
            _CHANNEL + "import os\nif os.fork() == 0:\n    c = channel()\n"
            '    while True: c.sendall(b\'\\0\\0\\0\\x16["value",["i","11"],1]\')\n'
            "def f(x): return 0"
        ),
        "descriptors sent along": (
            _CHANNEL + "import os\ndef f(x):\n    c = channel()\n"
            "    for _ in range(50): socket.send_fds(c, [b'\\0'], [0, 1, 2, c.fileno()])\n"
            "    os._exit(0)"
        ),
        "a twin that holds the channel after the end": (
            "import os, time\nif os.fork() == 0:\n    try: os.setsid()\n    except OSError: pass\n"
            "    time.sleep(60)\ndef f(x): os._exit(0)"
        ),
        "a twin that answers as well": "import os\ndef f(x):\n    os.fork()\n    return 0",
        "an answer by a late thread": (
            "import threading, time, os\ndef late():\n    time.sleep(0.2)\n    os._exit(0)\n"
            "def f(x):\n    threading.Thread(target=late).start()\n    time.sleep(1)"
        ),
        "closed descriptors": "import os\ndef f(x): os.closerange(0, 128)",
        "a channel that is shut": _CHANNEL + "def f(x): channel().shutdown(2)",
        "a channel that leads to itself": (
            _CHANNEL + "import os\ndef f(x):\n    a, b = socket.socketpair()\n"
            "    os.dup2(a.fileno(), channel().fileno())\n    return x"
        ),
        "memory until the end": (
            "def f(x):\n    a = []\n    while True: a.append(bytearray(1 << 22))"
        ),
        "a full disk": (
            "def f(x):\n    try:\n        for n in range(99): "
            "open(str(n), 'wb').write(bytes(4 << 20))\n    except OSError: pass"
        ),
        # -- text of the submission
        "text that is no Python": "def f(x) return x",
        "an empty submission": "",
        "a NUL": "def f(x): return x * x + 7\0",
        "half a character in the text": "def f(x): return x * x + 7  # \ud800",
        "nested beyond reason": "f = " + "(" * 100_000,
    }.items()
]

GRADE_FORGERIES: list[ForgedGrade] = [
    ForgedGrade(name, source)
    for name, source in {
        "no output": "",
        "exit with 0": "import sys; sys.exit(0)",
        "a printed mark": "print('PASSED')",
        "the input": "print(input())",
        "every answer": "for n in range(200): print(n)",
        "every answer, wiped from the screen": (
            "for n in range(200): print('\\r\\033[2K' + str(n), end='')"
        ),
        "the right answer and a NUL": "print(int(input()) ** 2 + 7, end='\\0')",
        "the right answer and an exception": "print(int(input()) ** 2 + 7)\nraise SystemExit(1)",
        "the right answer and a signal": (
            "import os\nprint(int(input()) ** 2 + 7, flush=True)\nos.kill(os.getpid(), 15)"
        ),
        "the right answer and no end": (
            "print(int(input()) ** 2 + 7, flush=True)\nwhile True: pass"
        ),
        "the right answer on standard error": (
            "import sys\nprint(int(input()) ** 2 + 7, file=sys.stderr)"
        ),
        "the right answer and a flood": (
            "print(int(input()) ** 2 + 7)\nwhile True: print('\\n' * 4096)"
        ),
        "the answer of the first test, kept in a file": (
            "import os\nif os.path.exists('/tmp/a'): print(16)\n"
            "else: open('/tmp/a', 'w').write('x')"
        ),
        "an answer of a daemon that comes late": (
            "import os, time\nif os.fork() == 0:\n    time.sleep(0.2)\n    print(16)"
        ),
    }.items()
]

GRADE_FORGERIES += [
    ForgedGrade("an answer where nothing is asked", "print('x')", (StdioTest("", ""),)),
    ForgedGrade(
        "a number beyond all floats where a tolerance holds",
        "def f(x): return 1 << 5000",
        (CallTest((3,), 16, tolerance=0.1), CallTest((3,), 16.5, tolerance=0.1)),
        "f",
    ),
    ForgedGrade(
        "a complex number beyond all floats where a tolerance holds",
        "def f(x): return [complex(1e308, 1e308)]",
        (CallTest((3,), [16], tolerance=0.1), CallTest((3,), [16.5], tolerance=0.1)),
        "f",
    ),
    ForgedGrade(
        "an answer that takes more room when it is passed on",
        _EVERYWHERE + "def f(x):\n    everywhere(frame(b'[\"value\",\"' + 'é'.encode() * 500_000 + "
        "b'\",1]'))\n    import time; time.sleep(60)",
        (AssertTest("assert f(3) == 15 + 1"),),
        "f",
    ),
    ForgedGrade(
        "an answer that fills a frame when it is an argument again",
        "import json\nroom = (1 << 20) - len(json.dumps(['call', 'f', ['t', ['']], ['d', []]], "
        "separators=(',', ':')))\ndef f(x): return 'x' * room if x == 3 else 16",
        (AssertTest("assert f(f(3)) == 16, 'f of f'\nassert False"),),
        "f",
    ),
    ForgedGrade(
        "half a character in what the test says",
        "def f(x): return '\\ud800'",
        (AssertTest("assert f(3) == 16, f(3)"), AssertTest("assert f(3) == 16, repr(f(3))")),
        "f",
    ),
    ForgedGrade(
        "an exception that ends an iteration of the test",
        "def f(x): raise StopIteration",
        (AssertTest("assert all(map(lambda x: f(x) == x * x + 7, range(5)))"),),
        "f",
    ),
    ForgedGrade(
        "a death inside a handler of the test",
        "import os\ndef f(x): os._exit(0)",
        (AssertTest("try:\n    f(1)\nexcept BaseException:\n    pass"),),
        "f",
    ),
    ForgedGrade(
        "its own builtins where the test calls the builtin",
        "def set(x): return 0\ndef sorted(x): return 0\ndef f(x): return [1]",
        (AssertTest("assert set(f(1)) == set([2])"), AssertTest("assert sorted(f(1)) == [2]")),
    ),
    ForgedGrade(
        "an answer that the setup of the test has",
        "def f(x): return 0",
        (AssertTest("assert f(3) == 16", setup="def f(x): return x * x + 7"),),
        "f",
    ),
    ForgedGrade(
        "its own helper where the test has one",
        "def helper(x): return 0\ndef f(x): return -1",
        (AssertTest("assert helper(f(4)) == 0", setup="def helper(x): return x"),),
        "f",
    ),
    ForgedGrade(
        "an exception where the test expects another",
        "def f(x): raise KeyError(x)",
        (AssertTest("try:\n    f(-1)\nexcept ValueError:\n    pass"),),
        "f",
    ),
    ForgedGrade("no tests at all", "def f(x): return x * x + 7", (), "f"),
]
