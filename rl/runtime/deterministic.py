"""Selects GPU kernels whose results repeat bit for bit, for ``deterministic=true``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rl.errors import UsageError
from rl.settings.run import RunConfig

WORKSPACE, REPEATABLE = "CUBLAS_WORKSPACE_CONFIG", (":4096:8", ":16:8")
"""The environment variable that cuBLAS reads when it starts, and the values of the variable that
make cuBLAS's results repeat bit for bit."""


@contextmanager
def deterministic_kernels(config: RunConfig) -> Iterator[None]:
    """In this context, torch uses deterministic kernels if ``deterministic=true`` on a GPU.

    An operation without such a kernel raises a RuntimeError that names the operation. On a CPU, the
    results of all kernels repeat, and the context does nothing.

    Raises:
        UsageError: cuBLAS's environment variable has a value whose results do not repeat, or CUDA
            has started without the variable.
    """
    if not _concerns(config):
        yield
        return
    fix_workspace(config)
    cudnn: Any = torch.backends.cudnn
    memory: Any = torch.utils.deterministic
    before = torch.get_deterministic_debug_mode()
    flags = cudnn.deterministic, cudnn.benchmark, memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic, cudnn.benchmark = True, False
    # No kernel here reads memory before it writes it.
    memory.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before)
        cudnn.deterministic, cudnn.benchmark, memory.fill_uninitialized_memory = flags


def _concerns(config: RunConfig) -> bool:
    return config.deterministic and config.device != "cpu" and torch.cuda.is_available()


def fix_workspace(config: RunConfig) -> None:
    """Set the variable for cuBLAS if ``deterministic=true`` on a GPU; call it before CUDA starts.

    cuBLAS uses this value until the process ends.

    Raises:
        UsageError: the variable has another value, or CUDA has started without it.
    """
    if not _concerns(config):
        return
    value = os.environ.get(WORKSPACE)
    if value in REPEATABLE:
        return
    if value is not None or torch.cuda.is_initialized():
        found = "unset after CUDA has started" if value is None else f"{value!r}"
        raise UsageError(
            f"deterministic needs {WORKSPACE}={REPEATABLE[0]} in the environment of the process, "
            f"here it is {found}: set it and start anew"
        )
    os.environ[WORKSPACE] = REPEATABLE[0]
