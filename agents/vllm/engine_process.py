"""VLLM's engine, started by this process, watched over and ended with all that belongs to it.

What is asked is in this process; what computes is in processes that vLLM starts.
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
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.vllm import tree
from agents.vllm.arguments import StartConfig
from agents.vllm.environment import handed_down
from agents.vllm.guard import Used, shared_memory
from agents.vllm.process import ServerGone
from agents.vllm.tree import Tree

if TYPE_CHECKING:
    import aiohttp

    from agents.vllm.engine import Engine

logger = logging.getLogger(__name__)
NOT_INSTALLED = (
    "policy=vllm-engine needs vLLM in this interpreter: pip install '.[vllm]', or say "
    "policy=vllm-server policy.python=... for one that is installed elsewhere"
)
NEEDED = ("pause_generation", "resume_generation", "collective_rpc", "update_weight_version")
"""Verbs of AsyncLLM that releases before 0.32 do not all have."""
_END_S = 30.0
"""How long an engine may take to be gone."""
_LOOK_S = 0.1


@dataclass(frozen=True, kw_only=True)
class EngineConfig(StartConfig):
    """How an engine is started."""

    gpu_memory: float = 0.4
    """Share of the GPU's memory that it takes; the learner has the rest."""
    sleep: bool = False
    """Whether it is able to give that memory back for a while."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments, by the names of vLLM's AsyncEngineArgs."""

    def engine_arguments(self) -> dict[str, Any]:
        """Everything that vLLM is told."""
        told = self.core_arguments() | {"use_tqdm_on_load": False}
        if not self.cpu:
            told |= {"gpu_memory_utilization": self.gpu_memory, "enable_sleep_mode": self.sleep}
        return told | dict(self.arguments)


class EngineProcess:
    """An AsyncLLM, and the processes that compute for it.

    Attributes:
        llm: the AsyncLLM; None before it is there and after it was ended.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.llm: Any = None
        self._boot: asyncio.Task[None] | None = None
        self._error = ""
        self._trees: set[Tree] = set()
        self._others: set[int | None] = set()
        self._guard: asyncio.subprocess.Process | None = None
        self._memory: Used
        """What shared memory it was seen to use."""
        self._ending = False
        self._stopping: asyncio.Task[None] | None = None

    @property
    def running(self) -> bool:
        """Whether it is there and alive."""
        return self.llm is not None and not self.llm.errored

    async def start(self) -> None:
        """Start it; it is there some twenty seconds later.

        Raises:
            ServerGone: vLLM is not installed here.
        """
        if importlib.util.find_spec("vllm") is None:
            raise ServerGone(NOT_INSTALLED)
        self._ending, self._error, self._stopping = False, "", None
        self._memory = Used(self._processes, shared_memory())
        # Else it would be started, once, with the engine's environment.
        resource_tracker.ensure_running()
        self._others = {child.pid for child in multiprocessing.active_children()}
        self._guard = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", tree.__file__),
            stdin=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        self._boot = asyncio.create_task(self._bring_up())

    async def ended(self) -> None:
        """Return when it is gone, or could not be started."""
        while self.running or (self._boot is not None and not self._boot.done()):
            await asyncio.sleep(_LOOK_S)

    def last_words(self) -> str:
        """Why it could not be started, in one line, and where the rest is."""
        log = self.config.log
        where = f" (all of it: {log})" if log is not None else ""
        return (self._error or "it said nothing") + where

    def instance(self, session: aiohttp.ClientSession, *, short_s: float, load_s: float) -> Engine:
        """What is asked; ``session`` is for servers."""
        from agents.vllm.engine import Engine

        return Engine(self, short_s=short_s, load_s=load_s)

    async def stop(self) -> None:
        """Kill its processes, and remove the shared memory that they left.

        Done to its end whoever is cancelled meanwhile: another call waits for the same.
        """
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        boot, self._boot = self._boot, None
        if boot is None:
            return
        self._ending = True
        self._memory.look()
        gone = self._kill()
        await asyncio.wait({boot}, timeout=_END_S)
        llm, self.llm = self.llm, None
        if llm is not None:
            gone += self._kill()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(llm.shutdown), _END_S)
            # It is called again when the object goes, when what it calls may be gone before.
            llm.shutdown = lambda: None
        loop = asyncio.get_running_loop()
        end = loop.time() + _END_S
        while any(one.exists for one in gone):
            if loop.time() > end:
                logger.warning("processes of the vLLM engine do not end")
                break
            await asyncio.sleep(_LOOK_S)
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
            await asyncio.wait({building}, timeout=_LOOK_S)
            self._note_trees()
            self._memory.look()
            if self._ending:
                self._kill()
        try:
            self.llm = building.result()
        # Whatever it is, it is told: vLLM's errors have no type in common.
        except Exception as error:
            logger.debug("the vLLM engine did not start", exc_info=error)
            self._error = " ".join(str(error).split()) or type(error).__name__

    def _note_trees(self) -> None:
        """Know the processes that vLLM starts, and have the guard know them."""
        for child in multiprocessing.active_children():
            if child.pid is None or child.pid in self._others or child.name[:6] != "Engine":
                continue
            self._others.add(child.pid)
            found = Tree.of(child.pid)
            self._trees.add(found)
            if self._guard is not None and self._guard.stdin is not None:
                self._guard.stdin.write(f"{found.pid} {found.born}\n".encode())

    def _processes(self) -> list[int]:
        """This one, which makes what it shares with those that compute, and those."""
        return [os.getpid(), *(one.pid for found in self._trees for one in found.members())]

    def _kill(self) -> list[Tree]:
        return [one for found in self._trees for one in found.kill()]

    def _build(self) -> Any:
        """Make the AsyncLLM: it waits for its processes, so it has a thread."""
        with tempfile.TemporaryDirectory(prefix="turnwise-engine-") as folder:
            log_config = Path(folder) / "logging.json"
            log_config.write_text(json.dumps(_log_config(self.config.log)))
            with handed_down(_variables(self.config, log_config)):
                import vllm
                from vllm.engine.arg_utils import AsyncEngineArgs
                from vllm.v1.engine.async_llm import AsyncLLM

                lacking = [verb for verb in NEEDED if not hasattr(AsyncLLM, verb)]
                if lacking:
                    raise ServerGone(
                        f"vLLM {vllm.__version__} has no AsyncLLM.{lacking[0]}: install 0.32 or "
                        f"later, or say policy=vllm-server"
                    )
                told = self.config.engine_arguments()
                _check_names(told, [f.name for f in dataclasses.fields(AsyncEngineArgs)])
                arguments = AsyncEngineArgs(**told)
                if self._ending:
                    raise ServerGone("it was ended before it was there")
                return AsyncLLM.from_engine_args(arguments)


def _check_names(told: Mapping[str, Any], known: list[str]) -> None:
    for name in told:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            raise ServerGone(f"policy.arguments: vLLM's engine has no argument {name!r}{hint}")


def _variables(config: EngineConfig, log_config: Path) -> dict[str, str]:
    variables = {
        # This process has threads: a copy of it might wait for one that it does not have.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        "VLLM_LOGGING_CONFIG_PATH": str(log_config),
        "VLLM_NO_USAGE_STATS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONWARNINGS": "ignore",
    }
    if config.transfer == "ipc":
        # Handles of a GPU's memory are pickled.
        variables["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
    if config.cpu:
        variables["OMP_NUM_THREADS"] = str(config.threads)
        # Else a small function of the sampler is compiled for half a minute at the first token.
        variables["TORCH_COMPILE_DISABLE"] = "1"
    return variables


def _log_config(log: Path | None) -> dict[str, Any]:
    """Everything that vLLM says goes to a file: the terminal is the run's."""
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
    """Delete a file of shared memory, also from what this process would delete as it ends."""
    path.unlink(missing_ok=True)
    kind, name = "shared_memory", path.name
    if name.startswith("sem."):
        kind, name = "semaphore", name.removeprefix("sem.")
    resource_tracker.unregister(f"/{name}", kind)
