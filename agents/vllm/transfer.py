"""Weights from memory to memory, by vLLM's own transfer: NCCL between GPUs, CUDA IPC on one.

vLLM has both ends of it (``vllm.distributed.weight_transfer``): an engine in each server, and one
here that drives it by four verbs. What is written here is what stands around them: a copy that does
not change while it is sent, a thread of its own, a deadline on every leg, and another beginning
after a failure. A server that was started again has no engine yet, so each is met anew.
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

from agents.vllm.environment import handed_down
from agents.vllm.errors import Refused, Unreachable
from agents.vllm.protocol import Verb
from agents.vllm.weights import UnfitWeights

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)
T = TypeVar("T")
_ABORT_S = 10.0
"""Giving up a communicator takes vLLM five seconds at most."""
_HERE = (None, "localhost", "127.0.0.1", "::1")
"""Hosts of servers that may share a GPU with this process; the engine in it has none."""


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
"""From a server to vLLM's ``TrainerInitInfo`` for it: how both ends meet.

It may raise Refused, for one that cannot be met.
"""


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
    if receiver.num_workers > 1 or urlsplit(receiver.url).hostname not in _HERE:
        raise Refused(
            f"{receiver.url} with {receiver.num_workers} worker(s) does not compute on this "
            "process's own GPU alone, as policy.transfer=ipc needs: say policy.transfer=nccl"
        )
    from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

    return IPCTrainerInitInfo(rank=0)


MEETINGS: dict[str, Meeting] = {"nccl": by_nccl, "ipc": by_ipc}
"""By vLLM's names for the transfers."""


def _address_towards(url: str) -> str:
    """This machine's address as the host of ``url`` sees it; nothing is sent to find it out."""
    at = urlsplit(url)
    assert at.hostname is not None
    # NCCL's meeting place is given by an address of version 4.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as towards:
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
        self._met: list[tuple[ref[Receiver], Any]] = []
        """Servers, and vLLM's sender for each."""
        self._one = asyncio.Lock()
        """Several communicators at once on one device may wait for each other for ever."""

    def write(self, weights: Mapping[str, torch.Tensor], version: int) -> Snapshot:
        """A copy of ``weights`` on their own device, to be sent to whoever needs this version.

        Raises:
            UnfitWeights: one is not finite.
        """
        # Tied weights have several names, and one copy.
        copies: dict[int, torch.Tensor] = {}
        for name, tensor in weights.items():
            if id(tensor) in copies:
                continue
            copies[id(tensor)] = copy = tensor.detach().clone()
            if copy.is_floating_point() and not copy.isfinite().all():
                raise UnfitWeights(f"version {version} is not published: {name} is not finite")
        return Snapshot(self, {name: copies[id(tensor)] for name, tensor in weights.items()})

    async def send(self, weights: Mapping[str, torch.Tensor], receiver: Receiver) -> None:
        """Put ``weights`` into a server, which is paused.

        Raises:
            Unreachable: it did not take them in time, or one of the two ends failed.
            Refused: it knows no such transfer, or cannot be met.
        """
        # It takes long, once, and sets variables that other children must not have.
        await asyncio.to_thread(_import)
        async with self._one:
            client = _Client(receiver, asyncio.get_running_loop(), self._deadline_s)
            sender = self._take(receiver)
            try:
                if sender is None:
                    meet = _on_device_of(weights, _meet(self._meeting, receiver, client))
                    sender = await self._in_time(client, "meet this process", meet)
                sender.client, sender.source.weights = client, weights
                send = _on_device_of(weights, sender.send_weights)
                await self._in_time(client, "take the weights", send)
            except BaseException:
                client.close()
                if sender is not None:
                    await _abort(sender)
                raise
            # Nothing of it may keep the server or the weights.
            sender.client, sender.source.weights = None, {}
            self._met.append((ref(receiver), sender))

    def close(self) -> None:
        """Nothing more is handed over."""
        met, self._met = self._met, []
        for _, sender in met:
            _shut_down(sender)

    def _take(self, receiver: Receiver) -> Any:
        """The sender for a server, out of the list; those of servers that are gone end."""
        mine, others = None, []
        for met, sender in self._met:
            if met() is receiver:
                mine = sender
            elif met() is None:
                threading.Thread(target=_shut_down, args=(sender,), daemon=True).start()
            else:
                others.append((met, sender))
        self._met = others
        return mine

    async def _in_time(self, client: _Client, what: str, work: Callable[[], T]) -> T:
        """What ``work`` returns, unless the server says before that it fails."""
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
        # Those of NCCL, CUDA and vLLM have no type in common.
        except Exception as error:
            said = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            raise Unreachable(f"{url} did not {what}: {said}") from error
        finally:
            working.cancel()


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
        self.receiver, self._loop, self._deadline_s = receiver, loop, deadline_s
        self._closed = False
        self.failed: Future[Any] = Future()
        """Has the first failure of a call, of which a sender may hear only after it has waited for
        the server in a collective call."""

    def close(self) -> None:
        """A sender that was given up must not go on talking while another one does."""
        self._closed = True

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        self._tell("init_weight_transfer_engine", {"init_info": init_info})

    def start_weight_update(self) -> None:
        self._tell("start_weight_update", {})

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        self._tell("update_weights", {"update_info": update_info})

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._tell("finish_weight_update", {})

    def _tell(self, verb: Verb, told: dict[str, Any]) -> None:
        try:
            if self._closed:
                raise Unreachable(f"{self.receiver.url} is not told {verb}: it took too long")
            call: Coroutine[Any, Any, None] = self.receiver.transfer(verb, told)
            asyncio.run_coroutine_threadsafe(call, self._loop).result(self._deadline_s)
        except BaseException as error:
            if not self.failed.done():
                self.failed.set_exception(error)
            raise


def _import() -> None:
    name = "vllm.distributed.weight_transfer.factory"
    if name not in sys.modules:
        with handed_down({}):
            importlib.import_module(name)


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


async def _abort(sender: Any) -> None:
    """Give up what may hang in a collective call, before another begins beside it."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_ABORT_S):
            await _in_thread(partial(_shut_down, sender), "a transfer of weights that ends")


def _shut_down(sender: Any) -> None:
    try:
        sender.shutdown()
    except Exception:
        # The others must end as well.
        logger.exception("a transfer of weights could not be ended")


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
