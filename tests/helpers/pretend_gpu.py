"""Tensors that say they are on a GPU and compute on the CPU, and a record of each copy and wait.

A real GPU reports a mixture of devices at once, but hides where the host waits for it. Here both
are counted, by the line of code.
"""

from __future__ import annotations

import contextlib
import traceback
from collections import Counter
from pathlib import Path

import torch
from torch.nn.utils import clip_grad
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda:0")
HOME = str(Path(__file__).resolve().parents[2])
WAITS = {
    *("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_consecutive"),
    *("unique_dim", "bincount", "equal", "is_nonzero"),
}
"""Operators whose result's value or size the host must know."""
MASKED = ("index", "index_put", "index_put_", "_index_put_impl_")


class Record:
    """What happened since :meth:`clear`."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.uploads = 0
        """Copies of pinned memory to the device, without a wait."""
        self.reads = 0
        """Waits for copies to pinned memory."""
        self.stalls: Counter[str] = Counter()
        """Implicit waits and pageable copies, by line."""
        self.mixed: Counter[str] = Counter()
        """Operators that got tensors of two devices, by line."""


record = Record()


def _line() -> str:
    """The newest line of this project, and of the library that it calls."""
    frames = [f for f in traceback.extract_stack() if f.filename != __file__]
    own = [f for f in frames if f.filename.startswith(HOME) and "site-packages" not in f.filename]
    return " <- ".join(f"{Path(f.filename).name}:{f.lineno}" for f in (frames[-1], *own[-1:]))


def _on_cpu(x):
    return x.data_on_cpu if isinstance(x, OnGPU) else x


def _on_gpu(x):
    return OnGPU(x) if isinstance(x, torch.Tensor) and not isinstance(x, OnGPU) else x


class OnGPU(torch.Tensor):
    """A tensor that says it is on the GPU."""

    @staticmethod
    def __new__(cls, x, requires_grad=False):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            x.size(),
            strides=x.stride(),
            storage_offset=x.storage_offset(),
            dtype=x.dtype,
            device=x.device,
            requires_grad=requires_grad,
        )
        made.data_on_cpu = x
        return made

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def __repr__(self):
        return f"OnGPU{tuple(self.shape)}"

    def __deepcopy__(self, memo):
        copy = OnGPU(self.data_on_cpu.detach().clone())
        if isinstance(self, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy, self.requires_grad)
        memo[id(self)] = copy
        return copy

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = func._schema.name.removeprefix("aten::")
        _note(name, args, kwargs)
        if kwargs.get("device") is not None:
            kwargs["device"] = torch.device("cpu")
        out = func(*tree_map(_on_cpu, args), **tree_map(_on_cpu, kwargs))
        in_place = name.endswith("_") and not name.endswith("__") and name != "_fused_adamw_"
        return args[0] if in_place and isinstance(args[0], torch.Tensor) else tree_map(_on_gpu, out)


def _note(name, args, kwargs):
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    masked = name in MASKED and any(
        isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1]
    )
    if name in WAITS or masked or (name == "repeat_interleave" and not kwargs.get("output_size")):
        record.stalls[f"{name} {_line()}"] += 1
    if any(not isinstance(x, OnGPU) and x.dim() for x in tensors):
        if name == "copy_" or name in MASKED:
            record.stalls[f"{name} between devices {_line()}"] += 1
        else:
            record.mixed[f"{name} {_line()}"] += 1


def _is(device, kind):
    return device is not None and torch.device(device).type == kind


class _Mode(TorchFunctionMode):
    """Redirects what names a device, so that its results say they are there."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name in ("to", "cpu") and isinstance(args[0], torch.Tensor):
            return self._moved(args[0], list(args[1:]), kwargs, "cpu" if name == "cpu" else None)
        if name == "tolist" and isinstance(args[0], OnGPU):
            record.stalls[f"tolist {_line()}"] += 1
            return args[0].data_on_cpu.tolist()
        if name == "numpy" and isinstance(args[0], OnGPU):
            raise TypeError(f"a GPU's tensor has no numpy array: {_line()}")
        pinned = kwargs.pop("pin_memory", False)
        if name == "copy_" and getattr(args[0], "pinned", False) and kwargs.get("non_blocking"):
            args[0].copy_(_on_cpu(args[1]))
            return args[0]
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = torch.device("cpu")
        if _is(device, "cpu") and name.endswith("_like"):
            args = tree_map(_on_cpu, args)
        out = func(*args, **kwargs)
        if _is(device, "cuda"):
            if name in ("tensor", "as_tensor"):
                record.stalls[f"{name} {_line()}"] += 1
            return tree_map(_on_gpu, out)
        if pinned:
            out.pinned = True
        return out

    def _moved(self, x, args, kwargs, device):
        for i, given in enumerate(args):
            if isinstance(given, str | torch.device):
                device = args.pop(i)
                break
            if isinstance(given, torch.Tensor):
                device, args[i] = given.device, given.dtype
                break
        device = kwargs.pop("device", device)
        quick = kwargs.pop("non_blocking", False)
        if _is(device, "cuda") and not isinstance(x, OnGPU):
            if quick and getattr(x, "pinned", False):
                record.uploads += 1
            else:
                record.stalls[f"upload {_line()}"] += 1
            x = OnGPU(x.detach().clone())
        elif _is(device, "cpu") and isinstance(x, OnGPU):
            record.stalls[f"download {_line()}"] += 1
            x = x.data_on_cpu.detach().clone()
        args = [given for given in args if isinstance(given, torch.dtype)]
        return x.to(*args, **kwargs) if args or kwargs else x


class _Event:
    """In place of ``torch.cuda.Event``."""

    def record(self, stream: object = None) -> None: ...

    def synchronize(self) -> None:
        record.reads += 1


@contextlib.contextmanager
def pretended(monkeypatch):
    """Redirect calls that name the GPU, and yield the record."""
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: _Event().synchronize())
    group = clip_grad._group_tensors_by_device_and_dtype

    def grouped(tables):
        # Torch groups by the device below the class.
        on_gpu = isinstance(tables[0][0], OnGPU)
        return {(GPU if on_gpu else d, t): own for (d, t), own in group(tables).items()}

    monkeypatch.setattr(clip_grad, "_group_tensors_by_device_and_dtype", grouped)
    record.clear()
    with _Mode():
        yield record


def moved(model):
    """``model`` with all its parameters and buffers on the GPU; tied ones stay tied."""
    made = {}
    for module in model.modules():
        for name, x in list(module._parameters.items()):
            if x is not None and id(x) not in made:
                made[id(x)] = torch.nn.Parameter(OnGPU(x.data), x.requires_grad)
            if x is not None:
                module._parameters[name] = made[id(x)]
        for name, x in list(module._buffers.items()):
            if x is not None:
                module._buffers[name] = OnGPU(x)
    return model
