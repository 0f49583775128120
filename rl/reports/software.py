"""Probes of the software: versions, required versions, torch and vLLM."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from rl.reports.probes import Facts, output_of
from rl.run.folder import versions

NAME = "turnwise"
PACKAGES = (
    *("transformers", "tokenizers", "safetensors", "huggingface-hub", "peft", "bitsandbytes"),
    *("vllm", "flash-attn", "triton", "accelerate", "trl", "gymnasium", "numpy", "chz", "aiohttp"),
    *("math-verify", "bm25s", "docker", "mcp", "openai", "datasets", "pyarrow", "wandb"),
)
_OWN_TOOLS = ("test",)
"""Extras whose versions matter to developers alone."""
_IN_TORCH = """
import json, torch
found = {"version": torch.__version__, "cuda": torch.version.cuda, "gpus": []}
if torch.cuda.is_available():
    for i in range(torch.cuda.device_count()):
        p = torch.cuda.get_device_properties(i)
        found["gpus"].append(f"{p.name}, {p.total_memory / 2**30:.1f} GiB, {p.major}.{p.minor}")
print(json.dumps(found))
"""
_IN_VLLM = """
import json, platform
from importlib.metadata import version
print(json.dumps({"vllm": version("vllm"), "torch": version("torch"),
                  "python": platform.python_version()}))
"""


def turnwise(deadline_s: float) -> Facts:
    """Versions of turnwise and Python, and the commit of the code."""
    found = versions()
    commit = found["commit"]
    if commit is not None and _has_changes(deadline_s):
        commit = f"{commit}, with local changes"
    return Facts(
        {
            "version": found["packages"].get(NAME, "not installed, imported from a folder"),
            "commit": commit or "unknown",
            "folder": str(_home()),
            "python": f"{found['python']}, {platform.python_implementation()}, {sys.executable}",
        }
    )


def packages(deadline_s: float) -> Facts:
    """Versions of packages, and of every package that turnwise requires in another version."""
    found: dict[str, Any] = {}
    for name in PACKAGES:
        version = _version(name)
        if version is not None:
            found[name] = version
    return Facts(found, list(_wrong_versions()))


def torch(deadline_s: float) -> Facts:
    """Torch's version and the GPUs that it sees, from a process of its own."""
    try:
        found = json.loads(output_of([sys.executable, "-c", _IN_TORCH], deadline_s))
    except RuntimeError as error:
        return Facts({"version": _version("torch")}, [f"torch cannot be imported: {error}"])
    return Facts(found | {"gpus": found["gpus"] or "none: the CPU computes"})


def vllm_of(python: str) -> Any:
    """A probe of vLLM in the interpreter ``python``, as in ``policy.python``."""

    def probe(deadline_s: float) -> Facts:
        try:
            found = json.loads(output_of([python, "-c", _IN_VLLM], deadline_s))
        except RuntimeError as error:
            return Facts({"interpreter": python}, [f"{python} has no usable vLLM: {error}"])
        return Facts({"interpreter": python, **found})

    return probe


def _home() -> Path:
    return Path(__file__).resolve().parents[2]


def _has_changes(deadline_s: float) -> bool:
    """Whether the checkout has changes that no commit has."""
    done = subprocess.run(
        ["git", "status", "--porcelain", "--untracked-files=no"],
        cwd=_home(),
        capture_output=True,
        timeout=deadline_s,
        check=False,
    )
    return bool(done.stdout.strip())


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _wrong_versions() -> Iterator[str]:
    """One line for each required package that is absent or has another version.

    A package of an extra counts only if it is installed.
    """
    try:
        lines = metadata.requires(NAME) or []
    except metadata.PackageNotFoundError:
        return
    for line in lines:
        needed = Requirement(line)
        extras = _extras_of(needed)
        if extras is None or set(extras) & set(_OWN_TOOLS):
            continue
        owner = f"{NAME}[{extras[0]}]" if extras else NAME
        version = _version(needed.name)
        fix = f"pip install '{needed.name}{needed.specifier}'"
        if version is None:
            if not extras:
                yield f"{needed.name} is not installed, {owner} needs it: {fix}"
        elif not needed.specifier.contains(version, prereleases=True):
            yield (
                f"{needed.name} {version} is installed, {owner} needs "
                f"{needed.name}{needed.specifier}: {fix}"
            )


def _extras_of(needed: Requirement) -> list[str] | None:
    """The extras that bring a requirement; [] for none, and None if it is for other machines."""
    marker = needed.marker
    if marker is None or marker.evaluate({"extra": ""}):
        return []
    extras = metadata.metadata(NAME).get_all("Provides-Extra") or []
    found = [extra for extra in extras if marker.evaluate({"extra": extra})]
    return found or None
