"""Bundles the source of ``tools.sandbox.inside`` into one JSON document for a bare interpreter."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import asdict
from pathlib import Path

from tools.sandbox.inside.config import Config

_FLAGS = ("-I", "-S", "-B", "-X", "utf8")
_INSIDE = "tools.sandbox.inside"
_PACKAGES = ("tools", "tools.sandbox", _INSIDE, f"{_INSIDE}.supervisor", f"{_INSIDE}.program")
# Imported at the start, so that programs find them loaded. All are harmless to import. Each costs
# every run a little time, so modules that programs rarely use are not listed.
_PRELOADED = (
    *("abc", "bisect", "collections", "collections.abc", "contextlib", "copy", "dataclasses"),
    *("datetime", "decimal", "enum", "fractions", "functools", "heapq", "io", "itertools"),
    *("json", "linecache", "math", "numbers", "operator", "os", "random", "re", "statistics"),
    *("string", "struct", "threading", "time", "traceback", "types", "typing", "warnings"),
)
# In import order: each module follows those that it imports.
_MODULES = (
    "program.fork_hooks",
    "config",
    "kernel",
    "fd_passing",
    "procfs",
    "codec",
    "workdir",
    "namespaces",
    "supervisor.kernel_limits",
    "supervisor.usage",
    "supervisor.mappings",
    "supervisor.process_tree",
    "supervisor.processes",
    "supervisor.watchdog",
    "supervisor.collect",
    "program.loader",
    "program.calls",
    "program.asserts",
    "frames",
    "program.cells",
    "program.process_groups",
    "program.main",
    "supervisor.branch",
    "supervisor.host_link",
    "supervisor.pausing",
    "supervisor.sessions",
    "supervisor.main",
    "zygote",
    "tunnel",
    "relay",
)

_FROM_FILE = """
import json, os, sys, types
fd = int(sys.argv[1])
os.lseek(fd, 0, 0)
with open(fd, "rb") as file:
    bundle = json.load(file)
"""
# Reads no byte beyond the document: the rest of the stream is for the started module.
_FROM_STREAM = """
import json, os, struct, sys, types
def take(count):
    data = b""
    while len(data) < count:
        part = os.read(0, count - len(data))
        if not part:
            os._exit(1)
        data += part
    return data
bundle = json.loads(take(*struct.unpack("!I", take(4))))
"""
# Fork hooks are deferred, see ``fork_hooks``. Programs cannot import these modules by name.
_BOOTSTRAP = """
hooks = []
register, os.register_at_fork = os.register_at_fork, lambda **hook: hooks.append(hook)
for name in bundle["preloaded"]:
    __import__(name)
for name, source in bundle["modules"]:
    module = types.ModuleType(name)
    sys.modules[name] = module
    parent, _, last = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], last, module)
    if source is None:
        module.__path__ = []
    else:
        exec(compile(source, "<" + name + ">", "exec"), module.__dict__)
os.register_at_fork = register
loaded = {name: sys.modules.pop(name) for name, _ in bundle["modules"]}
loaded["tools.sandbox.inside.program.fork_hooks"].hold(hooks)
loaded["tools.sandbox.inside." + bundle["main"]].main(bundle["settings"])
"""


def command(python: str, bundle_fd: int) -> list[str]:
    """Command line of a zygote that reads its bundle from ``bundle_fd``.

    With ``-I`` and ``-S``, the interpreter ignores the environment and installed packages.
    """
    return [python, *_FLAGS, "-c", _FROM_FILE + _BOOTSTRAP, str(bundle_fd)]


def streamed_command(python: str) -> list[str]:
    """Command line of a process that reads a length, then its bundle, from standard input."""
    return [python, *_FLAGS, "-c", _FROM_STREAM + _BOOTSTRAP]


def write(config: Config) -> int:
    """Write the zygote's bundle to an anonymous file.

    Returns the descriptor, which the caller closes.
    """
    return anonymous_file("zygote", document(config, "zygote"))


def document(config: Config, main: str) -> bytes:
    """The bundle as bytes.

    When it runs, it calls the function ``main`` of the module named ``main``.
    """
    parts = {
        "preloaded": _PRELOADED,
        "modules": _modules(),
        "main": main,
        "settings": json.dumps(asdict(config)),
    }
    return json.dumps(parts).encode()


def anonymous_file(name: str, content: bytes) -> int:
    """Make a file in memory with this content. Returns its descriptor, positioned at the start."""
    fd = os.memfd_create(name)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


@functools.cache
def _modules() -> list[tuple[str, str | None]]:
    folder = Path(__file__).parents[1] / "inside"
    modules: list[tuple[str, str | None]] = [(name, None) for name in _PACKAGES]
    for name in _MODULES:
        path = folder / f"{name.replace('.', '/')}.py"
        modules.append((f"{_INSIDE}.{name}", path.read_text("utf-8")))
    return modules
