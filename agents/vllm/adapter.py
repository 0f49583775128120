"""An adapter on a vLLM server: a name that requests give, and a path that its workers read.

VLLM 0.32 can replace an adapter by itself (``load_inplace``). That is not used: the word stays with
the name, so that every step reads the files again, and a request that runs has the former path, by
which it brings the former adapter back for everybody. Instead the path is a link: an update turns
it to the new folder and has the workers forget what they read, and they read it at the next token.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agents.vllm.arguments import room
from agents.vllm.weights import ADAPTER_CONFIG

ADAPTER = "turnwise-adapter"
"""Its name."""


def is_adapter(folder: Path) -> bool:
    """Whether the folder holds an adapter, not weights."""
    return (folder / ADAPTER_CONFIG).is_file()


def link_of(folder: Path, url: str) -> Path:
    """The path by which the server at ``url`` knows the adapters that lie beside ``folder``.

    Each server has its own: one on its way back may need the version before the newest.
    """
    return folder.with_name("adapter-" + re.sub(r"\W+", "-", url.rpartition("//")[2]))


def turn(link: Path, folder: Path) -> None:
    """Have ``link`` lead to ``folder``, from one moment to the next.

    Raises:
        OSError: it cannot be written.
    """
    turned = link.with_name(f"{link.name}.new")
    turned.unlink(missing_ok=True)
    turned.symlink_to(folder.name)
    turned.replace(link)


def held(answer: Mapping[str, Any]) -> list[int]:
    """The numbers of the adapters that workers hold, from what ``list_loras`` answered.

    It is a list with what each worker says, a set in Python's words.
    """
    told = answer.get("results") or ()
    return sorted({int(number) for one in told for number in re.findall(r"\d+", str(one))})


def how_to_start(folder: Path) -> str:
    """What a server's command line must say that the adapter in ``folder`` can be loaded."""
    adapter = json.loads((folder / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    return (
        f"an adapter of rank {adapter['r']} is loaded by /v1/load_lora_adapter: start the server "
        f"with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora, --max-lora-rank "
        f"{room(adapter['r'])} and --lora-target-modules {' '.join(adapter['target_modules'])}"
    )
