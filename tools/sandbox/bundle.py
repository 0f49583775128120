"""The text of everything that runs inside, as one JSON document for a bare interpreter."""

from __future__ import annotations

import functools
import json
import os
from dataclasses import asdict
from pathlib import Path

from tools.sandbox.inside.config import Config

_FLAGS = ("-I", "-S", "-B", "-X", "utf8")
_PACKAGES = ("tools", "tools.sandbox", "tools.sandbox.inside")
# Imported at the start so that programs find them loaded. All of them are harmless to import. Each
# costs every run a little: what programs rarely use is left out.
_PRELOADED = (
    *("abc", "bisect", "collections", "collections.abc", "contextlib", "copy", "dataclasses"),
    *("datetime", "decimal", "enum", "fractions", "functools", "heapq", "io", "itertools"),
    *("json", "linecache", "math", "numbers", "operator", "os", "random", "re", "statistics"),
    *("string", "struct", "threading", "time", "traceback", "types", "typing", "warnings"),
)
# In the order of their imports.
_MODULES = (
    "fork_hooks",
    "config",
    "kernel",
    "passing",
    "codec",
    "surroundings",
    "usage",
    "mappings",
    "watchdog",
    "child",
    "collect",
    "loader",
    "calls",
    "asserts",
    "frames",
    "cells",
    "groups",
    "program",
    "branch",
    "judge",
    "rest",
    "sessions",
    "warden",
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
# Not a byte beyond the document: what follows it is for whoever it starts.
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
# Hooks of forks are held back, see ``fork_hooks``. No program finds these modules by their names.
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
loaded["tools.sandbox.inside.fork_hooks"].hold(hooks)
loaded["tools.sandbox.inside." + bundle["main"]].main(bundle["settings"])
"""


def command(python: str, bundle_fd: int) -> list[str]:
    """The command line of a zygote that reads its program from ``bundle_fd``.

    ``-I`` and ``-S``: neither the environment nor installed packages take part.
    """
    return [python, *_FLAGS, "-c", _FROM_FILE + _BOOTSTRAP, str(bundle_fd)]


def streamed_command(python: str) -> list[str]:
    """The command line of one that reads its program from standard input, length first."""
    return [python, *_FLAGS, "-c", _FROM_STREAM + _BOOTSTRAP]


def write(config: Config) -> int:
    """The bundle as an anonymous file; the caller closes the descriptor."""
    return anonymous_file("zygote", document(config, "zygote"))


def document(config: Config, main: str) -> bytes:
    """The bundle, whose start is the ``main`` of the module of that name."""
    parts = {
        "preloaded": _PRELOADED,
        "modules": _modules(),
        "main": main,
        "settings": json.dumps(asdict(config)),
    }
    return json.dumps(parts).encode()


def anonymous_file(name: str, content: bytes) -> int:
    """A descriptor of a file that exists in memory only, positioned at its start."""
    fd = os.memfd_create(name)
    with open(fd, "wb", closefd=False) as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd


@functools.cache
def _modules() -> list[tuple[str, str | None]]:
    here = Path(__file__).parent / "inside"
    modules: list[tuple[str, str | None]] = [(name, None) for name in _PACKAGES]
    for name in _MODULES:
        modules.append((f"{_PACKAGES[-1]}.{name}", (here / f"{name}.py").read_text("utf-8")))
    return modules
