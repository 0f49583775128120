"""A LoRA adapter on a vLLM server. Requests name the adapter, and workers read it from a path.

The path is a symbolic link. An update points the link to the new folder and makes the workers drop
the loaded adapter, so that they read the new one at the next token. vLLM 0.32's own replacement
(``load_inplace``) is not used, because every step would read the files again, and a running request
would bring the old adapter back. See docs/decisions/0009-an-adapters-path-is-a-link.md.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.serving.weight_folders import ADAPTER_CONFIG
from agents.vllm.arguments import max_lora_rank

ADAPTER = "turnwise-adapter"
"""The adapter's name on servers."""


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds an adapter instead of a whole model's weights."""
    return (folder / ADAPTER_CONFIG).is_file()


def link_of(folder: Path, url: str) -> Path:
    """The adapter's path for the server at ``url``, beside ``folder``.

    Each server has its own link, because a restarted server may load the version before the newest.
    """
    return folder.with_name("adapter-" + re.sub(r"\W+", "-", url.rpartition("//")[2]))


def point_link(link: Path, folder: Path) -> None:
    """Point ``link`` to ``folder``, atomically.

    Raises:
        OSError: the link cannot be written.
    """
    new = link.with_name(f"{link.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(folder.name)
    new.replace(link)


def adapter_ids(answer: Mapping[str, Any]) -> list[int]:
    """Ids of the adapters that workers hold, from the response to ``list_loras``.

    The response has one text for each worker, which is the representation of a Python set.
    """
    results = answer.get("results") or ()
    return sorted({int(number) for one in results for number in re.findall(r"\d+", str(one))})


def how_to_start(folder: Path) -> str:
    """Instructions for starting a server that can load the adapter in ``folder``."""
    adapter = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    rank, targets = adapter["r"], " ".join(adapter["target_modules"])
    return (
        f"an adapter of rank {rank} is loaded by /v1/load_lora_adapter: start the server "
        f"with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora, --max-lora-rank "
        f"{max_lora_rank(rank)} and --lora-target-modules {targets}"
    )
