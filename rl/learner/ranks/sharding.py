"""Sharded models: FSDP2 divides every parameter, its gradient and its averages among the ranks.

A layer's weights are gathered when its forward or backward pass begins, and freed when it ends
(Zhao et al. 2023, PyTorch FSDP, arXiv 2304.11277; here in its second version, ``fully_shard``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor, Shard, distribute_tensor, empty

from rl.learner.memory.activations import decoder_layers
from rl.learner.model import kept_in_float32
from rl.learner.ranks.shards import start_writing, take_apart
from rl.learner.ranks.world import Place, Root, World

Item = TypeVar("Item")


def divide(root: Root, mesh: DeviceMesh, dtype: torch.dtype) -> None:
    """Divide the parameters of a module, layer by layer and then the rest, in place.

    Each layer moves to the rank's device, which keeps its part only. A model that is larger than
    the device can therefore be on the host.

    Args:
        root: the module.
        mesh: the ranks.
        dtype: the type in which the model computes. If it is not float32, weights become float32.

    Raises:
        ValueError: the model computes with some weights in float32, and their module has others;
            or several layers share a weight.
    """
    _check_shared(root)
    policy, mixed = MixedPrecisionPolicy(), dtype != torch.float32
    if mixed:
        policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for part in (*_kept_parts(root, dtype), *root.precise()):
        fully_shard(part, mesh=mesh)
    for layer in (layer for trunk in root.trunks() for layer in decoder_layers(trunk)):
        if mixed:
            _make_precise(layer)
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    if mixed:
        _make_precise(root)
    # By default the root's weights stay gathered until a backward pass. After scoring there is
    # none, and an optimizer step would leave the gathered weights as they were.
    fully_shard(root, mesh=mesh, mp_policy=policy, reshard_after_forward=True)
    for name in root.also_forward:
        register_fsdp_forward_method(root, name)


def _check_shared(root: Root) -> None:
    for trunk in root.trunks():
        owners = dict[int, nn.Module]()
        for layer in decoder_layers(trunk):
            for name, parameter in layer.named_parameters():
                if owners.setdefault(id(parameter), layer) is not layer:
                    raise ValueError(
                        f"several layers of the model share a weight ({name}), as in Zamba2, which "
                        "ranks cannot divide: give learner.ranks=1"
                    )


def _kept_parts(root: Root, dtype: torch.dtype) -> list[nn.Module]:
    """Modules all of whose weights stay in float32, although the model computes in ``dtype``."""
    kept = kept_in_float32(root, dtype) & {name for name, _ in root.named_parameters()}
    parts = []
    for name in sorted({name.rpartition(".")[0] for name in kept}):
        part = root.get_submodule(name)
        if others := {f"{name}.{own}" for own, _ in part.named_parameters()} - kept:
            raise ValueError(
                f"model keeps weights of {name} in float32 and others ({min(others)}) not, which "
                "ranks cannot: give learner.ranks=1 or dtype=float32"
            )
        parts.append(part)
    return parts


@torch.no_grad()
def _make_precise(module: nn.Module) -> None:
    """Make the weights of a module that are not divided yet float32, in place."""
    for x in (*module.parameters(), *module.buffers()):
        if x.is_floating_point() and not isinstance(x, DTensor):
            x.data = x.data.float()


class Ranks(World):
    """The ranks of one process group; see :class:`World`.

    Parameters are kept in float32 and divided. A model that computes in bfloat16 gathers its
    weights in bfloat16, and sums the ranks' gradients in float32.

    Args:
        rank: this process's number, from 0.
        size: number of processes.
        rendezvous: where the processes find each other: ``file://PATH``, a file that does not exist
            before, or ``tcp://HOST:PORT``, a free port of rank 0's machine.
        device: this rank's device.
        dtype: the type in which the model computes.
        timeout_s: seconds after which an exchange with another rank fails.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        rendezvous: str,
        device: torch.device,
        dtype: torch.dtype,
        timeout_s: float,
    ) -> None:
        self.rank, self.size = rank, size
        timeout = timedelta(seconds=timeout_s)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        if device.type == "cuda":
            torch.cuda.set_device(device)
        dist.init_process_group(backend, rendezvous, rank=rank, world_size=size, timeout=timeout)
        # Numbers travel by gloo: they are on the host, and NCCL would copy them to the device.
        self._numbers = dist.new_group(backend="gloo", timeout=timeout)
        # Files are written while the ranks go on.
        self._writing = dist.new_group(backend="gloo", timeout=timeout)
        self._mesh: DeviceMesh = init_device_mesh(device.type, (size,))
        self._dtype = dtype

    def shard(self, root: Root) -> None:
        """Divide the parameters of a module among the ranks."""
        divide(root, self._mesh, self._dtype)

    def gather(self, value: Item) -> list[Item]:
        """The value of each rank, by rank."""
        found: list[Any] = [None] * self.size
        dist.all_gather_object(found, value, group=self._numbers)
        return found

    @torch.no_grad()
    def whole(self, x: Tensor) -> Tensor:
        """The complete tensor of which ``x`` may be this rank's part."""
        return x.full_tensor() if isinstance(x, DTensor) else x

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Memory for this rank's part of a tensor with this complete shape, on its device."""
        return empty(*shape, dtype=dtype, device_mesh=self._mesh, placements=[Shard(0)])

    def start_writing(
        self, state: Mapping[str, Any], folder: Path
    ) -> tuple[dict[str, Any], list[Place], Callable[[], None]]:
        """Copy this rank's parts of nested dictionaries, and begin to write them."""
        rest, divided, places = take_apart(state)
        return deepcopy(rest), places, start_writing(divided, folder, self._writing)

    @torch.no_grad()
    def own(self, x: Tensor) -> Tensor:
        """This rank's part of ``x``, which shares the memory of ``x``."""
        return x.to_local() if isinstance(x, DTensor) else x

    def part(self, whole: Tensor, like: Tensor) -> Tensor:
        """The part of a complete tensor that this rank keeps, divided as ``like`` is."""
        if not isinstance(like, DTensor) or whole.shape != like.shape:
            return whole
        if isinstance(whole, DTensor):
            return whole  # It was read from the ranks' files, divided as all tensors are.
        # No source: each rank has the complete tensor, and nothing is sent.
        whole = whole.to(like.device, like.dtype)
        return distribute_tensor(whole, like.device_mesh, like.placements, src_data_rank=None)

    def load(self, module: nn.Module, state: Mapping[str, Any]) -> None:
        """Load complete tensors into a module that is divided among the ranks."""
        current = module.state_dict()
        module.load_state_dict({name: self.part(x, current[name]) for name, x in state.items()})

    def divided_as(self, like: Tensor, own: Tensor) -> Tensor:
        """The divided tensor of which ``own`` is this rank's part."""
        if not isinstance(like, DTensor) or own.shape != like.to_local().shape:
            return own
        return DTensor.from_local(
            *(own, like.device_mesh, like.placements),
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )

    def close(self) -> None:
        """Leave the process group."""
        dist.destroy_process_group()
