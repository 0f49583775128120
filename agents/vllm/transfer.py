"""Weights from memory to memory, by vLLM's own transfer: NCCL between GPUs, CUDA IPC on one.

vLLM has both ends of it (``vllm.distributed.weight_transfer``): an engine in each server, and one
here that drives it by four verbs. What is written here is what stands around them: a copy that does
not change while it is sent, a thread of its own, a deadline on every leg, and another beginning
after a failure. A server that was started again has no engine yet, so each is met anew.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from agents.vllm.protocol import Verb
from agents.vllm.replica import Refused, Unreachable
from agents.vllm.weights import UnfitWeights

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


class Receiver(Protocol):
    """A vLLM that weights are sent to."""

    @property
    def url(self) -> str:
        """What it is called where something is said of it."""
        ...

    @property
    def num_workers(self) -> int:
        """Processes that hold its weights."""
        ...

    async def transfer(self, verb: Verb, told: Mapping[str, Any]) -> None:
        """Tell it a verb; it has a deadline.

        Raises:
            Unreachable: it does not answer in time, or fails.
            Refused: it knows no such verb.
        """
        ...


Meeting = Callable[[Receiver], Any]
"""From a server to vLLM's ``TrainerInitInfo`` for it: how both ends meet."""


def by_nccl(receiver: Receiver) -> Any:
    """Over NCCL: the trainer's GPU is none of the server's."""
    from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
    from vllm.utils.network_utils import get_open_port

    return NCCLTrainerInitInfo(
        master_address=_address_towards(receiver.url),
        master_port=get_open_port(),
        world_size=1 + receiver.num_workers,
        rank=0,
    )


def by_ipc(receiver: Receiver) -> Any:
    """By CUDA IPC: the server computes on the trainer's own GPU."""
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    return IPCTrainerInitInfo(rank=0)


MEETINGS: dict[str, Meeting] = {"nccl": by_nccl, "ipc": by_ipc}
"""By vLLM's names for the transfers."""


def _address_towards(url: str) -> str:
    """This machine's address as the host of ``url`` sees it; nothing is sent to find it out."""
    at = urlsplit(url)
    assert at.hostname is not None
    family = socket.getaddrinfo(at.hostname, at.port, type=socket.SOCK_DGRAM)[0][0]
    with socket.socket(family, socket.SOCK_DGRAM) as towards:
        towards.connect((at.hostname, at.port or 80))
        return str(towards.getsockname()[0])


class Transfer:
    """Hands versions over from memory to memory, one server after the other.

    Args:
        meeting: how this end and a server's meet.
        deadline_s: of meeting a server, and of one handing over, each, in seconds.
    """

    def __init__(self, meeting: Meeting, *, deadline_s: float) -> None:
        self._meeting = meeting
        self._deadline_s = deadline_s
        self._senders: WeakKeyDictionary[Receiver, Any] = WeakKeyDictionary()
        self._one = asyncio.Lock()
        """Several communicators at once on one device may wait for each other for ever."""

    def write(self, weights: Mapping[str, torch.Tensor], version: int) -> Snapshot:
        """A copy of ``weights`` on their own device, to be sent to whoever needs this version.

        Raises:
            UnfitWeights: one is not finite.
        """
        copies = {name: tensor.detach().clone() for name, tensor in weights.items()}
        for name, tensor in copies.items():
            if tensor.is_floating_point() and not tensor.isfinite().all():
                raise UnfitWeights(f"version {version} is not published: {name} is not finite")
        return Snapshot(self, copies)

    async def send(self, weights: Mapping[str, torch.Tensor], receiver: Receiver) -> None:
        """Put ``weights`` into a server, which is paused.

        Raises:
            Unreachable: it did not take them in time, or one of the two ends failed.
            Refused: it knows no such transfer.
        """
        async with self._one:
            sender = self._senders.pop(receiver, None)
            client = _Client(receiver, asyncio.get_running_loop(), self._deadline_s)
            if sender is None:
                meet = _meet(self._meeting, receiver, client)
                meet = _on_device_of(weights, meet)
                sender = await self._in_time(receiver, "meet this process", meet)
            sender.client, sender.source.weights = client, weights
            send = _on_device_of(weights, sender.send_weights)
            await self._in_time(receiver, "take the weights", send)
            sender.source.weights = {}
            # Only now: one that failed is met anew.
            self._senders[receiver] = sender

    def close(self) -> None:
        """Nothing more is handed over."""
        for sender in list(self._senders.values()):
            sender.shutdown()
        self._senders.clear()

    async def _in_time(self, receiver: Receiver, what: str, work: Callable[[], T]) -> T:
        try:
            async with asyncio.timeout(self._deadline_s):
                return await _in_thread(work, f"weights to {receiver.url}")
        except (Unreachable, Refused):
            raise
        except TimeoutError as error:
            raise Unreachable(
                f"{receiver.url} did not {what} within {self._deadline_s:g} s"
            ) from error
        # Those of NCCL, CUDA and vLLM have no type in common.
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise Unreachable(f"{receiver.url} did not {what}: {said}") from error


class Snapshot:
    """The weights of a version, as they were.

    Args:
        transfer: sends them.
        weights: nobody else's.
    """

    def __init__(self, transfer: Transfer, weights: Mapping[str, torch.Tensor]) -> None:
        self._transfer = transfer
        self._weights = weights

    async def into(self, receiver: Receiver) -> None:
        """As :meth:`Transfer.send`."""
        await self._transfer.send(self._weights, receiver)


class _Client:
    """What vLLM's sender calls, in its threads, each call until it is answered."""

    def __init__(
        self, receiver: Receiver, loop: asyncio.AbstractEventLoop, deadline_s: float
    ) -> None:
        self._receiver, self._loop, self._deadline_s = receiver, loop, deadline_s

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._tell("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._tell("start_weight_update", {})

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        self._tell("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._tell("finish_weight_update", {})

    def _tell(self, verb: Verb, told: dict[str, Any]) -> None:
        call: Coroutine[Any, Any, None] = self._receiver.transfer(verb, told)
        asyncio.run_coroutine_threadsafe(call, self._loop).result(self._deadline_s)


def _meet(meeting: Meeting, receiver: Receiver, client: _Client) -> Callable[[], Any]:
    """What makes vLLM's sender for a server, and has both meet."""

    def meet() -> Any:
        from vllm.distributed.weight_transfer.base import ParamMeta, WeightSource
        from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

        class Source(WeightSource):  # type: ignore[misc]
            """What is sent next."""

            weights: Mapping[str, torch.Tensor] = {}

            def metadata(self) -> list[Any]:
                return [
                    ParamMeta(name, tensor.dtype, tuple(tensor.shape))
                    for name, tensor in self.weights.items()
                ]

            def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
                return iter(self.weights.items())

        return WeightTransferTrainerFactory.trainer_init(
            meeting(receiver), client=client, source=Source()
        )

    return meet


def _on_device_of(weights: Mapping[str, torch.Tensor], work: Callable[[], T]) -> Callable[[], T]:
    """The same work on the device of ``weights``: a new thread would be on the first."""
    device = next(iter(weights.values())).device

    def there() -> T:
        if device.type != "cuda":
            return work()
        import torch

        with torch.cuda.device(device):
            return work()

    return there


async def _in_thread(work: Callable[[], T], name: str) -> T:
    """What ``work`` returns, done in a thread of its own.

    It is nobody's: one that hangs in a collective call can be ended by nothing but the process.
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
