"""Starts, monitors and ends vLLM's engine, with all its processes.

The engine's front end runs in this process. vLLM starts the processes that compute.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import difflib
import importlib.util
import json
import logging
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.digests.turnwise_digests import WeightDigests
from agents.serving import process_tree
from agents.serving.errors import ServerGone
from agents.serving.orphans import Used, shared_memory
from agents.serving.process_tree import Tree
from agents.vllm.arguments import StartConfig
from agents.vllm.engine import Engine
from agents.vllm.environment import child_environment

if TYPE_CHECKING:
    import aiohttp

logger = logging.getLogger(__name__)
NOT_INSTALLED = (
    "policy=vllm-engine needs vLLM in this interpreter: pip install '.[vllm]', or use "
    "policy=vllm-server policy.python=... with another interpreter"
)
NEEDED = ("pause_generation", "resume_generation", "collective_rpc", "update_weight_version")
"""Methods of AsyncLLM that some releases before 0.32 lack."""
_END_S = 30.0
"""Seconds that an engine may take to end."""
_CHECK_S = 0.1


@dataclass(frozen=True, kw_only=True)
class EngineConfig(StartConfig):
    """How an engine is started."""

    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Additional arguments, by the names of vLLM's AsyncEngineArgs."""

    def engine_arguments(self) -> dict[str, Any]:
        """All arguments of the engine."""
        # A spawned worker has this process's sys.path, and no other PYTHONPATH.
        extension = f"{WeightDigests.__module__}.{WeightDigests.__qualname__}"
        values = self.core_arguments() | {"use_tqdm_on_load": False}
        values["worker_extension_cls"] = extension
        return values | dict(self.arguments)


class VLLMEngineProcess:
    """An AsyncLLM, and the processes that compute for it.

    Attributes:
        llm: the AsyncLLM, or None before it is ready and after it has ended.
    """

    engine = "vLLM"

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.llm: Any = None
        self._boot: asyncio.Task[None] | None = None
        self._error = ""
        self._trees: set[Tree] = set()
        self._others: set[int | None] = set()
        self._guard: asyncio.subprocess.Process | None = None
        self._memory: Used
        """Shared memory that the processes use."""
        self._ending = False
        self._stopping: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether the engine is alive."""
        return self.llm is not None and not self.llm.errored

    async def start(self) -> None:
        """Start the engine. It is ready about twenty seconds later.

        Raises:
            ServerGone: vLLM is not installed in this interpreter.
        """
        if importlib.util.find_spec("vllm") is None:
            raise ServerGone(NOT_INSTALLED)
        self._ending, self._error, self._stopping = False, "", None
        self._memory = Used(self._processes, shared_memory())
        # Otherwise the tracker would start later, with the engine's environment.
        resource_tracker.ensure_running()
        self._others = {child.pid for child in multiprocessing.active_children()}
        self._guard = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", process_tree.__file__),
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._boot = asyncio.create_task(self._bring_up())

    async def ended(self) -> None:
        """Wait until the engine has ended, or could not be started."""
        while self.running or (self._boot is not None and not self._boot.done()):
            await asyncio.sleep(_CHECK_S)

    def last_words(self) -> str:
        """Why the engine could not be started, in one line, and the path of the log."""
        log = self.config.log
        where = f" (all of it: {log})" if log is not None else ""
        return (self._error or "no error message") + where

    def client(self, session: aiohttp.ClientSession, *, short_s: float, load_s: float) -> Engine:
        """A client of the engine. ``session`` is ignored."""
        return Engine(lambda: self.llm, short_s=short_s, load_s=load_s)

    async def stop(self) -> None:
        """Kill the engine's processes, and remove their shared memory.

        The cleanup finishes even if the caller is cancelled. Another call waits for it.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        boot, self._boot = self._boot, None
        if boot is None:
            return
        self._ending = True
        self._memory.observe()
        gone = self._kill()
        await asyncio.wait({boot}, timeout=_END_S)
        llm, self.llm = self.llm, None
        if llm is not None:
            gone += self._kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(llm.shutdown), _END_S)
            # The object's destructor calls it again, at a time when its own parts may not exist.
            llm.shutdown = lambda: None
        loop = asyncio.get_running_loop()
        end = loop.time() + _END_S
        while any(one.exists for one in gone):
            if loop.time() > end:
                logger.warning("processes of the vLLM engine do not end")
                break
            await asyncio.sleep(_CHECK_S)
        self._trees = set()
        for path in self._memory.orphans():
            _remove(path)
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            await guard.wait()
            assert guard.stdin is not None
            guard.stdin.close()

    async def _bring_up(self) -> None:
        building = asyncio.ensure_future(asyncio.to_thread(self._build))
        while not building.done():
            await asyncio.wait({building}, timeout=_CHECK_S)
            self._note_trees()
            self._memory.observe()
            if self._ending:
                self._kill()
        try:
            self.llm = building.result()
        # VLLM's exceptions have no common type.
        except Exception as error:
            logger.debug("the vLLM engine did not start", exc_info=error)
            self._error = " ".join(str(error).split()) or type(error).__name__

    def _note_trees(self) -> None:
        """Record the processes that vLLM starts, here and in the guard."""
        for child in multiprocessing.active_children():
            if child.pid is None or child.pid in self._others or child.name[:6] != "Engine":
                continue
            self._others.add(child.pid)
            found = Tree.of(child.pid)
            self._trees.add(found)
            if self._guard is not None and self._guard.stdin is not None:
                self._guard.stdin.write(f"{found.pid} {found.born}\n".encode())

    def _processes(self) -> list[int]:
        """Ids of this process, which creates the shared memory, and the processes that compute."""
        return [os.getpid(), *(one.pid for found in self._trees for one in found.members())]

    def _kill(self) -> list[Tree]:
        return [one for found in self._trees for one in found.kill()]

    def _build(self) -> Any:
        """Make the AsyncLLM. This runs in a thread, because it waits for its processes."""
        with tempfile.TemporaryDirectory(prefix="turnwise-engine-") as folder:
            log_config = Path(folder) / "logging.json"
            log_config.write_text(json.dumps(_log_config(self.config.log)))
            with child_environment(_variables(self.config, log_config)):
                import vllm
                from vllm.engine.arg_utils import AsyncEngineArgs
                from vllm.v1.engine.async_llm import AsyncLLM

                lacking = [verb for verb in NEEDED if not hasattr(AsyncLLM, verb)]
                if lacking:
                    raise ServerGone(
                        f"vLLM {vllm.__version__} has no AsyncLLM.{lacking[0]}: install 0.32 or "
                        f"later, or use policy=vllm-server"
                    )
                values = self.config.engine_arguments()
                _check_names(values, [f.name for f in dataclasses.fields(AsyncEngineArgs)])
                arguments = AsyncEngineArgs(**values)
                if self._ending:
                    raise ServerGone("the engine was stopped during its start")
                return AsyncLLM.from_engine_args(arguments)


def _check_names(names: Iterable[str], known: list[str]) -> None:
    for name in names:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ServerGone(f"policy.arguments: vLLM's engine has no argument {name!r}{hint}")


def _variables(config: EngineConfig, log_config: Path) -> dict[str, str]:
    variables = {
        # This process has threads: a forked copy could wait for a thread that it lacks.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_LOGGING_CONFIG_PATH": str(log_config),
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONWARNINGS": "ignore",
    }
    if config.transfer == "ipc":
        # Handles of GPU memory are pickled.
        variables["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    if config.cpu:
        variables["OMP_NUM_THREADS"] = str(config.threads)
        # Compiling a small function of the sampler would delay the first token by 30 s.
        variables["TORCH_COMPILE_DISABLE"] = "1"
    return variables


def _log_config(log: Path | None) -> dict[str, Any]:
    """A configuration that sends vLLM's messages to a file, because the run uses the terminal."""
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
    handler = {
        "class": "logging.FileHandler",
        "filename": str(log or os.devnull),
        "formatter": "line",
    }
    line = {"format": "%(asctime)s %(processName)s %(levelname)s %(message)s"}
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": line},
        "handlers": {"file": handler},
        "loggers": {"vllm": {"handlers": ["file"], "level": "INFO", "propagate": False}},
    }


def _remove(path: Path) -> None:
    """Delete a file of shared memory, and unregister it from this process's resource tracker."""
    path.unlink(missing_ok=True)
    kind, name = "shared_memory", path.name
    if name.startswith("sem."):
        kind, name = "semaphore", name.removeprefix("sem.")
    resource_tracker.unregister(f"/{name}", kind)
