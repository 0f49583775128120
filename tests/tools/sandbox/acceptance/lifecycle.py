"""Attacks across runs, on secrets, and on files and folders."""

from __future__ import annotations

from tests.tools.sandbox.acceptance.case import (
    BRIEF,
    ERROR,
    KILLED,
    OK,
    TIMEOUT,
    Program,
)

_DAEMON = """
def fork_away():
    if os.fork(): return False
    try: os.setsid()
    except OSError: pass
    if os.fork(): os._exit(0)
    return True
if fork_away():
    for n in range(1, 32):
        try: signal.signal(n, signal.SIG_IGN)
        except (OSError, ValueError): pass
    step('daemon')
    open('up', 'w').close()
    while True: time.sleep(1)
"""

_LEAVINGS = """
import builtins
forks(lambda: time.sleep(60))
builtins.print = None
sys.leftover = 1
for name in ('left', 'sitecustomize.py', 'usercustomize.py', 'left.pth', 'json.py', 'os.py',
             '/tmp/left', '/dev/shm/left', '/var/tmp/left', '/run/left'):
    try: open(name, 'w').write('1/0')
    except OSError: pass
os.write(1, b'step')
"""

_SEARCH = """
import gc
found = set()
def look(text):
    if isinstance(text, bytes): text = text.decode(errors='replace')
    if isinstance(text, str) and '-'.join(('turnwise', 'canary')) in text: found.add(text[:200])
"""


def daemon(end: str, status: tuple) -> Program:
    """A daemon that ignores every signal, next to a main process that ends this way."""
    return Program(
        f"a daemon is dead when the run returns: {end}",
        f"{_DAEMON}while not os.path.exists('up'): time.sleep(0.01)\n{end}",
        status,
        "^step daemon",
    )


def kills(expectation: str, act: str) -> Program:
    """An act that may end only the program itself."""
    return Program(
        expectation,
        f"step()\ntry:\n    {act}\nexcept OSError: pass",
        (OK, KILLED),
        follow_up=("print('alive')", "alive\n"),
    )


LIFECYCLE: list[Program] = [
    daemon("sys.exit(0)", (OK,)),
    daemon("os._exit(3)", (ERROR,)),
    daemon("os.kill(os.getpid(), 9)", (KILLED,)),
    Program(
        "a child that holds the pipes delays no result",
        "forks(lambda: time.sleep(60))\nstep()",
        (OK,),
    ),
    Program(
        "a child that executes another program is dead when the run returns",
        "import subprocess\n"
        "p = subprocess.Popen(['sleep', '61.5'], start_new_session=HOST['namespaces'])\nstep()",
        (OK,),
    ),
    Program(
        "no child has its own Unix session, which the scheduler might favour",
        "forks(lambda: (attempt(lambda: call(112)), sys.stdout.flush()))\nos.wait()\nstep()",
        (OK,),
        "^held EPERM\nstep",
    ),
    Program(
        "threads that hold the process do not outlive its exit",
        "import threading\n[threading.Thread(target=time.sleep, args=(60,)).start() "
        "for _ in range(4)]\nstep()\nos._exit(0)",
        (OK,),
    ),
    kills("killing every process hits only the run itself", "os.kill(-1, 9)"),
    kills("killing the group hits only the run itself", "os.killpg(0, 9)"),
    kills("killing the parent hits no process", "os.kill(os.getppid(), 9)"),
    kills("killing process 1 hits no process", "os.kill(1, 9)"),
    kills(
        "killing every process id hits no other process",
        "[signal.pidfd_send_signal(os.pidfd_open(p), 9) for p in range(1, 300) "
        "if p != os.getpid()]",
    ),
    kills("stopping the parent stops no process", "os.kill(os.getppid(), signal.SIGSTOP)"),
    kills(
        "a signal through a descriptor's owner hits no process",
        "import fcntl; a, b = socket.socketpair(); fcntl.fcntl(a, 8, HOST['victim']); "
        "fcntl.fcntl(a, 10, 9); fcntl.fcntl(a, 4, 0o20000); b.send(b'x')",
    ),
    Program(
        "lowering the user's priority affects no other process",
        "step()\ntry: os.setpriority(os.PRIO_USER, 0, 19)\nexcept OSError: pass",
        (OK,),
    ),
    Program(
        "giving up the parent's death signal does not help",
        "libc.prctl(1, 0)\nforks(lambda: [libc.prctl(1, 0), time.sleep(60)])\nstep()",
        (OK,),
    ),
    Program(
        "nothing is carried to the next run: files, hooks, processes, the interpreter",
        _LEAVINGS,
        (OK,),
        follow_up=(
            "import json, os, sys\nprint(os.listdir('.'), hasattr(sys, 'leftover'), "
            "[p for p in ('/tmp/left', '/dev/shm/left', '/var/tmp/left', '/run/left') "
            "if os.path.exists(p)])",
            "[] False []\n",
        ),
    ),
    Program(
        "shared memory with a name is not carried to the next run",
        "try:\n    open('/dev/shm/sem.x', 'w').write('x')\nexcept OSError: pass\nstep()",
        (OK,),
        follow_up=("import os\nprint(os.path.exists('/dev/shm/sem.x'))", "False\n"),
    ),
    Program(
        "a run does not see another's processes",
        "try: seen = [n for n in os.listdir('/proc') if n.isdigit()]\n"
        "except PermissionError: seen = []\nstep(len(seen) < 3)",
        (OK,),
        "^step True",
    ),
    Program(
        "a module in the working folder is the program's own",
        "import textwrap2\nstep(textwrap2.x)",
        (OK,),
        "^step 5",
        files={"textwrap2.py": "x = 5"},
    ),
]

SECRETS: list[Program] = [
    Program(
        "the host's environment is found nowhere",
        _SEARCH + "import glob\nfor text in os.environ.values(): look(text)\n"
        "for name in glob.glob('/proc/*/environ') + glob.glob('/proc/*/task/*/environ') "
        "+ [f'/proc/{p}/environ' for p in (1, HOST['trainer'], HOST['victim'], os.getppid())]:\n"
        "    try: look(open(name).read())\n    except OSError: pass\nstep(found)",
        shows=r"^step set\(\)$",
    ),
    Program(
        "no command line reveals the host",
        _SEARCH + "import glob\n"
        "for name in glob.glob('/proc/*/cmdline') + [f'/proc/{p}/cmdline' "
        "for p in (1, HOST['trainer'], HOST['victim'], os.getppid())]:\n"
        "    try: look(open(name).read())\n    except OSError: pass\nstep(found)",
        shows=r"^step set\(\)$",
    ),
    Program(
        "no descriptor is inherited",
        "held = []\nfor fd in range(1024):\n    try: os.fstat(fd); held.append(fd)\n"
        "    except OSError: pass\nstep(held)",
        shows=r"^step \[0, 1, 2\]$",
    ),
    Program(
        "no descriptor is left in a child that executes another program",
        "import subprocess\nstep(subprocess.run(['sh', '-c', 'echo $( (for n in 3 4 5 6 7 8 9; do "
        "(: >&$n) && echo $n; done) 2>/dev/null)'], capture_output=True, close_fds=False).stdout)",
        shows=r"^step b'\\n'$",
    ),
    Program(
        "the process's own memory reveals nothing of the host",
        _SEARCH + "for one in gc.get_objects():\n"
        "    if isinstance(one, dict):\n        for v in list(one.values()): look(v)\n"
        "    elif isinstance(one, (list, tuple)):\n        for v in one: look(v)\n"
        "step({t for t in found if 'look' not in t and 'HOST' not in t})",
        shows=r"^step set\(\)$",
    ),
    Program(
        "no capability is held or can be got by executing",
        "import struct, subprocess\n"
        "head = ctypes.create_string_buffer(struct.pack('=Ii', 0x20080522, 0))\n"
        "data = ctypes.create_string_buffer(24)\n"
        "step(libc.capget(head, data), data.raw == bytes(24), libc.prctl(39, 0, 0, 0, 0))",
        shows="^step 0 True 1$",
    ),
    Program(
        "setuid programs do not give root's rights",
        "import subprocess\nids = set()\nfor name in ('su', 'mount', 'passwd', 'sudo', 'chsh'):\n"
        "    try: p = subprocess.Popen(['/usr/bin/' + name, '--help'], stdout=-3, stderr=-3)\n"
        "    except OSError: continue\n"
        "    p.wait()\n"
        "step(os.getuid() != 0, os.geteuid() == os.getuid(), libc.prctl(39, 0, 0, 0, 0))",
        shows="^step True True 1$",
    ),
    Program(
        "the user and group are not root's",
        "step(os.getuid() == os.geteuid() != 0, os.getgid() == os.getegid() != 0)",
        shows="^step True True$",
    ),
    Program(
        "there is only an empty network interface",
        "try: seen = os.listdir('/proc/self/net') and open('/proc/self/net/dev').read()\n"
        "except OSError: seen = ''\nstep([line.split(':')[0].strip() "
        "for line in seen.splitlines()[2:] if 'lo:' not in line])",
        shows=r"^step \[\]$",
        not_promised={},
    ),
    Program(
        "no family of sockets can be opened",
        "opened = []\nfor family in range(64):\n    for kind in (1, 2, 3, 4, 5, 6, 10):\n"
        "        if libc.socket(family, kind, 0) >= 0: opened.append((family, kind))\n"
        "step(opened)",
        shows=r"^step \[\]$",
    ),
    Program(
        "only pairs of unix streams can be made",
        "made = []\nfor family in range(64):\n    for kind in (1, 2, 3, 4, 5, 6, 10):\n"
        "        if libc.socketpair(family, kind, 0, (ctypes.c_int * 2)()) == 0: "
        "made.append((family, kind))\nstep(made)",
        shows=r"^step \[\(1, 1\), \(1, 5\)\]$",
    ),
    Program(
        "one end of a pair sends to no other address",
        "a, b = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "for to in (HOST['unix_path'], HOST['unix_abstract']):\n"
        "    try: a.sendto(b'x', to)\n    except OSError: pass\nb.setblocking(False)\n"
        "step()",
    ),
]

FILES: list[Program] = [
    *(
        Program(
            f"any tree is cleared away: {name}",
            f"step()\ntry:\n    exec({tree!r})\nexcept OSError: pass",
            (OK, KILLED),
            follow_up=("print('next')", "next\n"),
        )
        for name, tree in {
            "deep": "for _ in range(1500): os.mkdir('d'); os.chdir('d')",
            "closed": "for n in range(500): os.makedirs(f'{n}/a', mode=0)\nos.mkdir('shut', 0)",
            "odd": (
                "os.symlink('/', 'root')\nos.symlink('loop', 'loop')\n"
                "open('-rf', 'w').close()\nopen(b'\\xff\\n', 'w').close()\n"
                "open('x' * 255, 'w').close()\nsocket.socketpair()"
            ),
            "linked": "open('a', 'w').close()\nfor n in range(900): os.link('a', f'{n}')",
        }.items()
    ),
    Program(
        "an archive whose names lead upwards writes no file of the host",
        "import io, tarfile\nb = io.BytesIO()\nt = tarfile.open(fileobj=b, mode='w')\n"
        "i = tarfile.TarInfo('../' * 40 + HOST['secret'][1:]); i.size = 1\n"
        "t.addfile(i, io.BytesIO(b'x')); t.close(); b.seek(0)\nstep()\n"
        "try: tarfile.open(fileobj=b).extractall()\nexcept Exception: pass",
        (OK,),
    ),
    Program(
        "a race of links and files leads nowhere",
        "step()\ndef swap():\n    while True:\n        for to in (HOST['secret'], '/usr'):\n"
        "            try: os.symlink(to, 'a'); os.rename('a', 'b')\n"
        "            except OSError: pass\n"
        "forks(swap, 2)\nend = time.monotonic() + 0.4\nwhile time.monotonic() < end:\n"
        "    try: print('ESCAPED', open('b').read())\n    except OSError: pass",
        (OK,),
    ),
    Program(
        "a race of folders while they are cleared away leads nowhere",
        "step()\ndef swap():\n    while True:\n        try: os.mkdir('a'); os.rename('a', 'b')\n"
        "        except OSError: pass\n        try: os.rmdir('b'); os.symlink('/', 'b'); "
        "os.unlink('b')\n        except OSError: pass\nforks(swap, 3)\ntime.sleep(0.2)",
        (OK,),
        follow_up=("import os\nprint(os.listdir('.'))", "[]\n"),
    ),
    Program(
        "given files can be read and changed, and belong to the run",
        "step(open('d/x').read()); open('d/x', 'w').write('y'); os.unlink('d/x')",
        shows="^step given",
        files={"d/x": "given"},
        follow_up=("import os\nprint(os.path.exists('d'))", "False\n"),
    ),
    Program(
        "files with odd names arrive under these names",
        "step(sorted(os.listdir('.')))",
        shows=r"^step \['-rf', 'a\\nb', 'é', '’', '\\udcff'\]$",
        files={"-rf": "", "a\nb": "", "é": "", "’": "", "\udcff": ""},
    ),
    Program(
        "a program cannot overwrite its source",
        "step(os.path.exists(__file__)); open(__file__, 'w').write('x')",
        shows="^step False",
        limits=BRIEF,
        statuses=(OK, TIMEOUT),
    ),
]
