"""Transfers weights from memory to memory by vLLM: NCCL between GPUs, CUDA IPC on one GPU.

vLLM implements both ends (``vllm.distributed.weight_transfer``): a receiver in each server, and a
sender here, which calls the receiver by four verbs. This module adds a copy that does not change
while it is sent, a thread for each call, deadlines, and retries after failures. A restarted server
has no receiver, so sender and receiver connect again.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import socket
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit
from weakref import ref

from agents.serving.client import UnfitWeights
from agents.serving.errors import Refused, Unreachable
from agents.vllm.environment import child_environment
from agents.vllm.protocol import Verb

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)
T = TypeVar("T")
_ABORT_S = 10.0
"""Seconds that aborting a transfer may take. vLLM needs at most five."""
_HERE = (None, "localhost", "127.0.0.1", "::1")
"""Hosts of servers that may share a GPU with this process; None is the engine in this process."""


class Receiver(Protocol):
    """A client of a vLLM server or engine that receives weights."""

    @property
    def url(self) -> str:
        """Name used in logs and errors."""
        ...

    @property
    def num_workers(self) -> int:
        """Number of processes that hold the weights."""
        ...

    async def transfer(self, verb: Verb, arguments: Mapping[str, Any]) -> None:
        """Call a verb of the transfer, with a deadline.

        Raises:
            Unreachable: vLLM does not answer in time, or fails.
            Refused: vLLM lacks the verb.
        """
        ...


Rendezvous = Callable[[Receiver], Any]
"""Function that makes vLLM's ``TrainerInitInfo`` for a server: how sender and receiver connect.

It raises Refused if they cannot connect.
"""


def by_nccl(receiver: Receiver) -> Any:
    """Connect over NCCL, between a trainer and a server on different GPUs."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
    from vllm.utils.network_utils import get_open_port

    return NCCLTrainerInitInfo(
        master_address=_address_towards(receiver.url),
        master_port=get_open_port(),
        world_size=1 + receiver.num_workers,
        rank=0,
    )


def by_ipc(receiver: Receiver) -> Any:
    """Connect by CUDA IPC, between a trainer and a server on the same GPU."""
    if receiver.num_workers > 1 or urlsplit(receiver.url).hostname not in _HERE:
        raise Refused(
            f"{receiver.url} with {receiver.num_workers} worker(s) does not compute on this "
            "process's own GPU alone, as policy.transfer=ipc needs: use policy.transfer=nccl"
        )
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    return IPCTrainerInitInfo(rank=0)


RENDEZVOUS: dict[str, Rendezvous] = {"nccl": by_nccl, "ipc": by_ipc}
"""Functions that connect sender and receiver, by vLLM's name of the transfer."""


def _address_towards(url: str) -> str:
    """This machine's address as the host of ``url`` sees it. Nothing is sent."""
    at = urlsplit(url)
    assert at.hostname is not None
    # NCCL's rendezvous needs an IPv4 address.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
        towards.connect((at.hostname, at.port or 80))
        return str(towards.getsockname()[0])


class Transfer:
    """Publishes weights from memory to memory, to one server after the other.

    Args:
        rendezvous: how this process and a server connect.
        deadline_s: deadline of connecting, and of sending one version, in seconds.
    """

    def __init__(self, rendezvous: Rendezvous, *, deadline_s: float) -> None:
        self._rendezvous = rendezvous
        self._deadline_s = deadline_s
        self._senders: list[tuple[ref[Receiver], Any]] = []
        """Connected servers, and vLLM's sender for each."""
        self._one = asyncio.Lock()
        """Prevents concurrent transfers, because several communicators on one device can
        deadlock."""

    def write(self, weights: Mapping[str, torch.Tensor], version: int) -> Snapshot:
        """Copy ``weights`` on their device, for sending to servers later.

        Raises:
            UnfitWeights: a weight is not finite.
        """
        # Tied weights have one copy, although a state_dict holds a tensor for each of their names.
        # Each name is sent: where vLLM repacks the output head, as on a CPU, it loads the head only
        # by the head's own name.
        copies: dict[tuple[object, ...], torch.Tensor] = {}
        named: dict[str, torch.Tensor] = {}
        for name, tensor in weights.items():
            place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
            if place not in copies:
                copies[place] = copy = tensor.detach().clone()
                if copy.is_floating_point() and not copy.isfinite().all():
                    raise UnfitWeights(f"version {version} is not published: {name} is not finite")
            named[name] = copies[place]
        return Snapshot(self, named)

    async def send(self, weights: Mapping[str, torch.Tensor], receiver: Receiver) -> None:
        """Send ``weights`` to a paused server.

        Raises:
            Unreachable: the transfer missed its deadline, or one end failed.
            Refused: the server lacks this transfer, or no connection is possible.
        """
        # The first import is slow, and sets variables that other child processes must not have.
        await asyncio.to_thread(_import)
        async with self._one:
            client = _Client(receiver, asyncio.get_running_loop(), self._deadline_s)
            sender = self._take_sender(receiver)
            try:
                if sender is None:
                    connect = _connect(self._rendezvous, receiver, client)
                    connect = _on_device_of(weights, connect)
                    sender = await self._in_time(client, "connect to this process", connect)
                sender.client, sender.source.weights = client, weights
                send = _on_device_of(weights, sender.send_weights)
                await self._in_time(client, "receive the weights", send)
            except BaseException:
                client.close()
                if sender is not None:
                    await _abort(sender)
                raise
            # The sender must keep neither the server nor the weights alive.
            sender.client, sender.source.weights = None, {}
            self._senders.append((ref(receiver), sender))

    def close(self) -> None:
        """Shut down all senders."""
        senders, self._senders = self._senders, []
        for _, sender in senders:
            _shut_down(sender)

    def _take_sender(self, receiver: Receiver) -> Any:
        """Remove and return a server's sender. Shut down the senders of servers that are gone."""
        mine, others = None, []
        for connected, sender in self._senders:
            if connected() is receiver:
                mine = sender
            elif connected() is None:
                threading.Thread(target=_shut_down, args=(sender,), daemon=True).start()
            else:
                others.append((connected, sender))
        self._senders = others
        return mine

    async def _in_time(self, client: _Client, what: str, work: Callable[[], T]) -> T:
        """Run ``work`` within the deadline. Raises early if a call to the server fails."""
        url = client.receiver.url
        working = asyncio.ensure_future(_in_thread(work, f"weights to {url}"))
        failing = asyncio.wrap_future(client.failed)
        failing.add_done_callback(lambda future: future.cancelled() or future.exception())
        try:
            async with asyncio.timeout(self._deadline_s):
                await asyncio.wait({working, failing}, return_when=asyncio.FIRST_COMPLETED)
                return (working if working.done() else failing).result()
        except (Unreachable, Refused):
            raise
        except TimeoutError as error:
            raise Unreachable(f"{url} did not {what} within {self._deadline_s:g} s") from error
        # Exceptions of NCCL, CUDA and vLLM have no common type.
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise Unreachable(f"{url} did not {what}: {said}") from error
        finally:
            working.cancel()


class Snapshot:
    """A copy of one version of the weights.

    Args:
        transfer: sends the weights.
        weights: the copy, which nothing else changes.
    """

    def __init__(self, transfer: Transfer, weights: Mapping[str, torch.Tensor]) -> None:
        self._transfer = transfer
        self._weights = weights

    async def into(self, receiver: Receiver) -> None:
        """Send the copy; see :meth:`Transfer.send`."""
        await self._transfer.send(self._weights, receiver)


class _Client:
    """The client that vLLM's sender calls in its threads. Each call blocks until the response."""

    def __init__(
        self, receiver: Receiver, loop: asyncio.AbstractEventLoop, deadline_s: float
    ) -> None:
        self.receiver, self._loop, self._deadline_s = receiver, loop, deadline_s
        self._closed = False
        self.failed: Future[Any] = Future()
        """The first failed call. A sender may notice the failure late, because it first waits for
        the server in a collective call."""

    def close(self) -> None:
        """Refuse further calls, because an aborted sender must not interfere with the next one."""
        self._closed = True

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._call("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._call("start_weight_update", {})

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        self._call("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._call("finish_weight_update", {})

    def _call(self, verb: Verb, arguments: dict[str, Any]) -> None:
        try:
            if self._closed:
                raise Unreachable(f"{self.receiver.url}: {verb} came after the transfer's deadline")
            call: Coroutine[Any, Any, None] = self.receiver.transfer(verb, arguments)
            asyncio.run_coroutine_threadsafe(call, self._loop).result(self._deadline_s)
        except BaseException as error:
            if not self.failed.done():
                self.failed.set_exception(error)
            raise


def _import() -> None:
    name = "vllm.distributed.weight_transfer.factory"
    if name not in sys.modules:
        with child_environment({}):
            importlib.import_module(name)


def _connect(rendezvous: Rendezvous, receiver: Receiver, client: _Client) -> Callable[[], Any]:
    """A function that makes vLLM's sender for a server, and connects sender and server."""

    def connect() -> Any:
        from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        class Source(WeightSource):  # type: ignore[misc]
            """The weights that the sender sends next."""

            weights: Mapping[str, torch.Tensor] = {}

            def metadata(self) -> list[Any]:
                return [
                    ParamMeta(name, tensor.dtype, tuple(tensor.shape))
                    for name, tensor in self.weights.items()
                ]

            def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
                return iter(self.weights.items())

        return WeightTransferTrainerFactory.trainer_init(
            rendezvous(receiver), client=client, source=Source()
        )

    return connect


def _on_device_of(weights: Mapping[str, torch.Tensor], work: Callable[[], T]) -> Callable[[], T]:
    """``work``, wrapped to run on the device of ``weights``.

    Without this, a new thread would use the first device.
    """
    device = next(iter(weights.values())).device

    def there() -> T:
        if device.type != "cuda":
            return work()
        import torch

        with torch.cuda.device(device):
            return work()

    return there


async def _abort(sender: Any) -> None:
    """Abort a sender that may hang in a collective call, before the next one starts."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ABORT_S):
            await _in_thread(partial(_shut_down, sender), "aborted weight transfer")


def _shut_down(sender: Any) -> None:
    try:
        sender.shutdown()
    except Exception:
        # The other senders must be shut down as well.
        logger.exception("a sender of weights could not be shut down")


async def _in_thread(work: Callable[[], T], name: str) -> T:
    """Run ``work`` in a new daemon thread and return its result.

    No thread pool is used, because a thread that hangs in a collective call ends only with the
    process.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, failed = None, None
        try:
            result = work()
        except BaseException as error:
            failed = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, failed)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await done
