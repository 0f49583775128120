"""Publishes weights as folders, each with a safetensors file that servers read.

Tied weights are written under each of their names, because vLLM packs an output head that is tied
to the embedding separately, and repacks only the names in the file. All weights are checked before
they are written, because a server that reads a bad file stays broken.

If only an adapter is trained, the folder holds the adapter alone, in PEFT's layout.
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agents.serving.client import UnfitWeights
from agents.serving.orphans import SHARED_MEMORY, Guard

if TYPE_CHECKING:
    import torch

_FREE_FACTOR = 3
"""Shared memory is used only if it has room for this number of copies of the weights: the newest
two are kept while the next one is written."""
ADAPTER_CONFIG = "adapter_config.json"
"""Name of a file that marks the folder of an adapter."""


class WeightFolders:
    """A run's published weights, one folder for each version. The newest two are kept.

    Args:
        parent: a folder that the servers see under the same path. None selects shared memory, or
            the temporary folder if shared memory lacks room.
        adapter: the content of ``adapter_config.json``, or None for the weights of a whole model.
    """

    def __init__(
        self, parent: Path | None = None, adapter: Mapping[str, Any] | None = None
    ) -> None:
        self._adapter = adapter
        self._parent = parent
        self._root: Path | None = None
        self._written: list[Path] = []
        self._names: set[str] = set()
        self._guard: Guard | None = None
        self._lock = threading.Lock()
        """Protects a running write: its caller may be cancelled and close the folders."""
        self._closed = False

    @property
    def newest(self) -> Path | None:
        """The folder that was written last."""
        return self._written[-1] if self._written else None

    def write(self, weights: Mapping[str, torch.Tensor], version: int) -> Path:
        """Write ``weights`` and return their folder.

        Args:
            weights: weights by their names in the model's ``state_dict`` or the adapter's file.
                They must not change during the call.
            version: version of the weights, which is part of the folder's name.

        Raises:
            UnfitWeights: a weight is not finite, or the names differ from those of the first
                version.
            OSError: the folder cannot be written, or the folders are closed.
        """
        with self._lock:
            if self._closed:
                raise OSError(f"version {version} is not published: the folders are closed")
            return self._write(weights, version)

    def _write(self, weights: Mapping[str, torch.Tensor], version: int) -> Path:
        from safetensors import SafetensorError

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights.items()}
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise UnfitWeights(f"version {version} is not published: {name} is not finite")
        names = set(tensors)
        if self._names and names != self._names:
            some = ", ".join(sorted(names ^ self._names)[:3])
            raise UnfitWeights(f"version {version} is not published: its names differ: {some}")
        self._names = names
        # A safetensors file cannot share bytes between names: tied weights are written twice.
        seen: set[int] = set()
        for name, tensor in tensors.items():
            if tensor.data_ptr() in seen:
                tensors[name] = tensor.clone()
            seen.add(tensor.data_ptr())
        folder = self._room(sum(t.nbytes for t in tensors.values())) / f"version-{version}"
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.mkdir(parents=True)
            self._save(tensors, folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise OSError(
                f"the weights of version {version} cannot be written to {folder.parent}: "
                f"{error}; free space there, or set another folder with policy.weights=..."
            ) from error
        self._written = [path for path in self._written if path != folder] + [folder]
        for old in self._written[:-2]:
            shutil.rmtree(old, ignore_errors=True)
        self._written = self._written[-2:]
        return folder

    def close(self) -> None:
        """Delete the folders. Later writes fail."""
        with self._lock:
            self._closed = True
            self._written = []
            if self._root is not None:
                shutil.rmtree(self._root, ignore_errors=True)
                self._root = None
            if self._guard is not None:
                self._guard.dismiss()
                self._guard = None

    def _save(self, tensors: dict[str, torch.Tensor], folder: Path) -> None:
        from safetensors.torch import save_file

        if self._adapter is None:
            save_file(tensors, folder / "model.safetensors")
            return
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / ADAPTER_CONFIG).write_text(json.dumps(self._adapter), encoding="utf-8")

    def _room(self, num_bytes: int) -> Path:
        if self._root is None:
            parent = self._parent
            if parent is None and SHARED_MEMORY.is_dir():
                free = shutil.disk_usage(SHARED_MEMORY).free
                parent = SHARED_MEMORY if free > math.ceil(_FREE_FACTOR * num_bytes) else None
            if parent is not None:
                parent.mkdir(parents=True, exist_ok=True)
            self._root = Path(tempfile.mkdtemp(prefix="turnwise-weights-", dir=parent))
            self._guard = Guard(folder=self._root)
            # A server may run as another user.
            self._root.chmod(0o755)
        return self._root
