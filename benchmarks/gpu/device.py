"""The machine: versions, and the two rates that bound everything else."""

from __future__ import annotations

import os
import subprocess
from importlib import metadata
from typing import Any

import torch

from benchmarks.gpu.figures import Report, Setup
from benchmarks.gpu.timing import seconds_of
from rl.run.folder import versions

PACKAGES = ("torch", "transformers", "vllm", "peft", "accelerate", "bitsandbytes", "triton")
BF16_FLOPS = {
    "H200": 989e12,
    "H100 PCIe": 756e12,
    "H100": 989e12,
    "A100": 312e12,
    "L40S": 362e12,
    "B200": 2250e12,
}
"""Dense bfloat16 operations a second, by a part of the device's name (NVIDIA's data sheets)."""


def run(setup: Setup, report: Report) -> None:
    report.write("about", about(setup))
    size = 256 if setup.small else 8192
    a, b = (torch.randn(size, size, device=setup.device).bfloat16() for _ in range(2))
    rate = 2 * size**3 / seconds_of(lambda: a @ b, setup) / 1e12
    report(f"product of bf16 matrices, {size} wide", rate, "TFLOP/s", note="random operands")
    source = torch.randn(2**20 if setup.small else 2**29, device=setup.device)
    target = torch.empty_like(source)
    rate = 2 * source.nbytes / seconds_of(lambda: target.copy_(source), setup) / 1e9
    report("copy in the device's memory", rate, "GB/s", note="bytes read and written")


def about(setup: Setup) -> dict[str, Any]:
    """The device, the versions and the commit."""
    found: dict[str, Any] = {
        "device": "cpu",
        "driver": None,
        "cuda": torch.version.cuda,
        "memory_gib": None,
    }
    if setup.on_gpu:
        properties = torch.cuda.get_device_properties(torch.device(setup.device))
        found |= {
            "device": properties.name,
            "driver": driver(),
            "memory_gib": round(properties.total_memory / 2**30, 1),
        }
    installed = {d.metadata["Name"]: d.version for d in metadata.distributions()}
    packages = {name: installed.get(name) for name in PACKAGES}
    known = versions()
    return {
        **found,
        "cores": os.cpu_count(),
        "packages": packages,
        "python": known["python"],
        "commit": known["commit"],
    }


def driver() -> str | None:
    """The driver's version, or None if ``nvidia-smi`` does not say it."""
    words = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else None


def peak_flops(setup: Setup) -> float | None:
    """The device's bfloat16 operations a second by its data sheet, or None if not known."""
    if not setup.on_gpu:
        return None
    name = torch.cuda.get_device_name(torch.device(setup.device))
    return next((flops for part, flops in BF16_FLOPS.items() if part in name), None)
