"""Probes of the machine: system, memory, disks, GPU driver, sandbox, Docker, environment."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from rl.files import turnwise_cache
from rl.reports.probes import Facts, output_of
from rl.run.process.cores import usable_cores
from rl.settings.parsing.plain import is_secret_name

_GIB = 1 << 30
_LEAST_FREE = 1 << 30
"""Bytes below which a disk counts as full: a checkpoint of a small model does not fit."""
_CONTAINER_SIGNS = ("/.dockerenv", "/run/.containerenv")
_VARIABLES = (
    *("TURNWISE_", "CUDA_", "NVIDIA_", "HF_", "TRANSFORMERS_", "VLLM_", "TORCH_", "PYTORCH_"),
    *("OMP_", "MKL_", "NCCL_", "DOCKER_", "XDG_CACHE_HOME", "PYTHONPATH", "TMPDIR"),
    *("LD_PRELOAD", "LD_LIBRARY_PATH", "TOKENIZERS_"),
)
"""Names, or starts of names, of environment variables that change a run."""


def system(deadline_s: float) -> Facts:
    """The operating system, processor and memory."""
    memory = _meminfo()
    found = {
        "system": f"{_distribution()}, {platform.system()} {platform.release()}",
        "processor": f"{_processor()}, {usable_cores()} of {os.cpu_count()} cores usable",
        "container": "yes" if any(Path(sign).exists() for sign in _CONTAINER_SIGNS) else "no",
    }
    if memory:
        total, free = memory["MemTotal"], memory["MemAvailable"]
        found["memory"] = f"{free / _GIB:.1f} GiB free of {total / _GIB:.1f} GiB"
    limit = _memory_limit()
    if limit is not None:
        found["memory_limit"] = f"{limit / _GIB:.1f} GiB by the control group"
    return Facts(found)


def gpu_driver(deadline_s: float) -> Facts:
    """The GPUs that NVIDIA's driver reports."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return Facts({"gpus": "no nvidia-smi on the PATH"})
    query = "--query-gpu=name,driver_version,memory.used,memory.total"
    try:
        lines = output_of([program, query, "--format=csv,noheader"], deadline_s).splitlines()
    except RuntimeError as error:
        return Facts({}, [f"nvidia-smi: {error}"])
    return Facts({"gpus": lines})


def disks(deadline_s: float) -> Facts:
    """The folders that turnwise writes to, and their free space."""
    hub = os.environ.get("HF_HUB_CACHE") or str(
        Path(os.environ.get("HF_HOME") or "~/.cache/huggingface") / "hub"
    )
    folders = {
        "cache": turnwise_cache(),
        "hub_cache": Path(hub).expanduser(),
        "work": Path.cwd(),
        "temporary": Path(tempfile.gettempdir()),
        "shared_memory": Path("/dev/shm"),
    }
    facts = Facts()
    for name, folder in folders.items():
        existing = next((path for path in (folder, *folder.parents) if path.is_dir()), None)
        if existing is None:
            continue
        free = shutil.disk_usage(existing).free
        facts.values[name] = f"{folder}: {free / _GIB:.1f} GiB free"
        if not os.access(existing, os.W_OK):
            facts.problems.append(f"{folder} ({name}) is not writable")
        elif free < _LEAST_FREE and name != "shared_memory":
            facts.problems.append(f"{folder} ({name}) has {free / 2**20:.0f} MiB free: free some")
    return facts


def sandbox(deadline_s: float) -> Facts:
    """The sandbox backends that work here, and why the others do not."""
    from tools.sandbox.doctor import Finding, examine

    async def within() -> list[Finding]:
        async with asyncio.timeout(deadline_s):
            return await examine(None)

    try:
        findings = asyncio.run(within())
    except TimeoutError:
        return Facts({}, [f"no answer within {deadline_s:g} s: python -m tools.sandbox doctor"])
    found = {
        f.backend: [
            f"{'works' if f.works else 'no'}, isolation {f.isolation}",
            *f.text.splitlines(),
        ]
        for f in findings
    }
    if any(f.works for f in findings):
        return Facts(found)
    return Facts(found, ["no backend works: python -m tools.sandbox doctor names the fixes"])


def docker(deadline_s: float) -> Facts:
    """The version and the runtimes of the Docker engine. An absent engine is no problem."""
    from tools.sandbox.backends.docker.engine import connect
    from tools.sandbox.errors import SandboxUnavailable

    try:
        client = connect()
    except SandboxUnavailable as error:
        return Facts({"engine": f"none usable: {error}"})
    try:
        version, info = client.version(), client.info()
    finally:
        client.close()
    return Facts(
        {
            "engine": f"{version.get('Version')}, API {version.get('ApiVersion')}",
            "runtimes": ", ".join(sorted(info.get("Runtimes") or {})),
            "rootless": "yes" if any("rootless" in o for o in info["SecurityOptions"]) else "no",
        }
    )


def environment(deadline_s: float) -> Facts:
    """The environment variables that change a run, without those that may hold keys."""
    return Facts(
        {
            name: value
            for name, value in sorted(os.environ.items())
            if name.startswith(_VARIABLES) and not is_secret_name(name)
        }
    )


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown distribution")
    except OSError:
        return sys.platform


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({platform.machine()})" if names else platform.machine()


def _meminfo() -> dict[str, int]:
    """The bytes in /proc/meminfo, by name. Empty on systems without this file."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return {}
    sizes: dict[str, Any] = {line.partition(":")[0]: line.split()[1] for line in lines}
    return {name: int(size) * 1024 for name, size in sizes.items()}


def _memory_limit() -> int | None:
    """The memory limit of the control group's root, as a container sees it, or None."""
    try:
        text = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None
