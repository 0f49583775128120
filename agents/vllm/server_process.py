"""Starts a vLLM server: its command line, its environment, and an explanation of its errors."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

from agents.digests.comparison import module_path
from agents.serving.process import ServerProcess
from agents.vllm.arguments import ONE_PROCESS, StartConfig, as_words
from agents.vllm.client import VLLMClient

_NO_MODULE = "No module named 'vllm'"
"""Error message of an interpreter that lacks vLLM."""
NOT_INSTALLED = (
    "it is not installed for {python}: pip install '.[vllm]', or set policy.python=... to an "
    "interpreter with vLLM"
)
_FIND_S = 60.0
"""Seconds that an interpreter may take to look for vLLM."""
_ABSENT = 3
_FIND = f"import sys, importlib.util as u; sys.exit({_ABSENT} * (u.find_spec('vllm') is None))"


@dataclass(frozen=True, kw_only=True)
class ServerConfig(StartConfig):
    """The settings with which a server is started."""

    python: str = sys.executable
    """The interpreter that has vLLM."""
    arguments: tuple[str, ...] = ()
    """Additional words for vLLM's command line."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables of the server, besides those of this process."""


class VLLMServerProcess(ServerProcess):
    """A vLLM server on a free port of this machine."""

    engine = "vLLM"

    def __init__(self, config: ServerConfig) -> None:
        super().__init__(config.log)
        self.config = config

    def command(self) -> list[str]:
        """The command line of a server at ``self.port``."""
        return command_line(self.config, self.port, self.host)

    def client(
        self, session: aiohttp.ClientSession, *, short_s: float, load_s: float
    ) -> VLLMClient:
        """A client of the server."""
        return VLLMClient(self.url, session, short_s=short_s, load_s=load_s)

    def variables(self) -> dict[str, str]:
        """Environment variables of the server."""
        variables = {
            "VLLM_SERVER_DEV_MODE": "1",
            "PYTHONHASHSEED": "0",
            # The client closes connections: the server never does while a request arrives.
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "600",
        }
        if self.config.transfer == "ipc":
            # Handles of GPU memory are pickled.
            variables["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        if self.config.lora_rank:
            variables["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
        variables |= self.config.environment
        variables["PYTHONPATH"] = module_path(variables.get("PYTHONPATH"))
        if self.config.cpu:
            variables["OMP_NUM_THREADS"] = str(self.config.threads)
            # Compiling a small function of the sampler would delay the first token by 30 s.
            variables["TORCH_COMPILE_DISABLE"] = "1"
        return variables

    def explain(self, error: str) -> str | None:
        """Explain how to install vLLM if the interpreter lacks it; otherwise return None."""
        python = self.config.python
        here = python == sys.executable and importlib.util.find_spec("vllm") is None
        if not here and _NO_MODULE not in error:
            return None
        return NOT_INSTALLED.format(python=python)


def has_vllm(python: str) -> bool:
    """Whether an interpreter has vLLM, as far as it says.

    Raises:
        OSError: there is no such program.
    """
    if python == sys.executable:
        return importlib.util.find_spec("vllm") is not None
    environment = os.environ | {"PYTHONPATH": module_path()}
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [python, "-c", _FIND],
            env=environment,
            capture_output=True,
            check=False,
            timeout=_FIND_S,
        )
        return done.returncode != _ABSENT
    return True


def command_line(config: ServerConfig, port: int, host: str = "127.0.0.1") -> list[str]:
    """Command line of a server that reports log-probabilities of its sampling distribution."""
    words = [config.python, "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--host", host, "--port", str(port), "--served-model-name", "turnwise"]
    words += ["--enable-scale-out", "--disable-uvicorn-access-log"]
    words += as_words(config.core_arguments())
    if config.cpu:
        words += ["--distributed-executor-backend", ONE_PROCESS]
    return [*words, *config.arguments]
