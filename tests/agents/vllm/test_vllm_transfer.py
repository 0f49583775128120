"""vLLM's own transfer of weights, with a real server and both ends of a transport without a GPU.

What is vLLM's is the server, its verbs, and the factory of sending ends; the transport is a file
(``tests/helpers/vllm_plugin``) in the place of NCCL and IPC.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_served import WINDOW, new_model, nudge, prober_of

from agents.completion import SamplingParams
from agents.serving import ManagedServer, Timeouts
from agents.serving.errors import Refused, Unreachable
from agents.serving.weight_folders import UnfitWeights
from agents.vllm import ServerConfig, Transfer, VLLMServerPolicy, VLLMServerProcess
from agents.vllm.protocol import transfer_body
from agents.vllm.transfer import by_ipc, by_nccl

PLUGIN = Path(__file__).parents[2] / "helpers" / "vllm_plugin"
PROMPT = list(range(20, 60))
START_S = 420.0


class Receiving:
    """A server that records the verbs that it receives, and the weights."""

    url = "http://127.0.0.1:9"
    num_workers = 4

    def __init__(self) -> None:
        self.verbs: list[str] = []
        self.got: dict[str, torch.Tensor] = {}

    async def transfer(self, verb, arguments) -> None:
        self.verbs.append(verb)
        if verb == "update_weights":
            self.got = load_file(arguments["update_info"]["path"])


def test_handles_of_a_gpus_memory_are_pickled_and_nothing_else_is():
    assert transfer_body({"init_info": {"packed": True}}) == {"init_info": {"packed": True}}
    plain = {"update_info": {"names": ["a"], "ipc_handles": None}}
    assert transfer_body(plain) == plain
    said = transfer_body({"update_info": {"names": ["a"], "ipc_handles": [{"gpu": (1, b"x")}]}})
    assert set(said["update_info"]) == {"names", "ipc_handles_pickled"}
    assert isinstance(said["update_info"]["ipc_handles_pickled"], str)


def test_weights_that_are_not_finite_are_not_sent():
    transfer = Transfer(lambda receiver: None, deadline_s=1)
    with pytest.raises(UnfitWeights, match="version 3 is not published: w is not finite"):
        transfer.write({"w": torch.tensor([1.0, float("nan")])}, 3)


@pytest.fixture
def plugin():
    pytest.importorskip("vllm", reason="vLLM is not installed for this interpreter")
    sys.path.insert(0, str(PLUGIN))
    import turnwise_test_transfer

    turnwise_test_transfer.register()
    yield turnwise_test_transfer
    sys.path.remove(str(PLUGIN))


@pytest.fixture
async def policy(plugin, model_folder, tmp_path):
    """A policy on a server with the plug-in, with weights 1."""
    config = ServerConfig(
        model=str(model_folder),
        context_window=WINDOW,
        dtype="float32",
        log=tmp_path / "server.log",
        transfer=plugin.BACKEND,
        environment={"PYTHONPATH": str(PLUGIN)},
    )
    model = new_model()
    prober = prober_of(model)
    policy = VLLMServerPolicy(
        [ManagedServer(prober, runner=VLLMServerProcess(config), start_s=START_S)],
        Transfer(lambda receiver: plugin.Rendezvous(rank=0), deadline_s=60),
        prober,
        context_window=WINDOW,
        timeouts=Timeouts(request_s=START_S),
    )
    policy.model = model
    try:
        await policy.open()
        await policy.load_weights(model.state_dict(), 1)
        yield policy
    finally:
        await policy.close()


async def test_updates_arrive_also_after_a_transfer_that_failed(policy, plugin, monkeypatch):
    made = plugin.Sending.num_made

    async def update(version: int) -> dict[str, float]:
        nudge(policy.model)
        await policy.load_weights(policy.model.state_dict(), version)
        completion = await policy.generate(PROMPT, SamplingParams(max_tokens=8, seed=version))
        assert completion.versions == (version,) * 8
        return policy.take_metrics()

    for version in range(2, 8):
        assert (await update(version))["sync/max_difference"] < 1e-4
    assert plugin.Sending.num_made == made, "both ends meet once"

    failures = ["NCCL error: unhandled cuda error"]

    def fault() -> None:
        if failures:
            raise RuntimeError(failures.pop())

    monkeypatch.setattr(plugin.Sending, "fault", staticmethod(fault))
    metrics = await update(8)
    assert failures == []
    assert (metrics["policy/restarts"], plugin.Sending.num_made) == (1, made + 1)
    assert metrics["sync/max_difference"] < 1e-4


class Slow(Receiving):
    """Takes its time over an update, the first time."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow, self.goes = True, threading.Event()

    async def transfer(self, verb, arguments) -> None:
        await super().transfer(verb, arguments)
        if verb == "update_weights" and self.is_slow:
            self.is_slow = False
            await asyncio.to_thread(self.goes.wait, 20)


async def test_a_sender_that_hangs_ends_with_its_deadline_and_is_heard_no_more(plugin):
    """Hangs like a sender whose peer left a collective call; its thread blocks no exit."""
    receiver, ended = Slow(), plugin.Sending.num_ended
    transfer = Transfer(lambda receiver: plugin.Rendezvous(rank=0), deadline_s=0.5)
    snapshot = transfer.write({"w": torch.zeros(3)}, 1)
    try:
        with pytest.raises(Unreachable, match=r"did not receive the weights within 0\.5 s"):
            await snapshot.into(receiver)
        assert plugin.Sending.num_ended == ended + 1, "it holds no communicator"
        receiver.verbs.clear()
        transfer._deadline_s = 20
        await snapshot.into(receiver)
    finally:
        receiver.goes.set()
    await asyncio.sleep(0.2)
    verbs = ["start_weight_update", "update_weights", "finish_weight_update"]
    assert receiver.verbs == ["init_weight_transfer_engine", *verbs], "the aborted sender is silent"


async def test_a_servers_error_is_reported_while_the_sender_waits(plugin, monkeypatch):
    """A broadcast waits for a server that has answered 500 long ago."""
    waits = threading.Event()

    class Failing(Receiving):
        async def transfer(self, verb, arguments) -> None:
            if verb == "update_weights":
                raise Unreachable("it has no room for them")

    def send_weights(self) -> None:
        threading.Thread(target=self.report, daemon=True).start()
        waits.wait(20)

    def report(self) -> None:
        with contextlib.suppress(Unreachable):
            self.client.update_weights({"path": ""})

    monkeypatch.setattr(plugin.Sending, "send_weights", send_weights)
    monkeypatch.setattr(plugin.Sending, "report", report, raising=False)
    transfer = Transfer(lambda receiver: plugin.Rendezvous(rank=0), deadline_s=20)
    try:
        async with asyncio.timeout(10):
            with pytest.raises(Unreachable, match="it has no room for them"):
                await transfer.write({"w": torch.zeros(3)}, 1).into(Failing())
    finally:
        waits.set()


async def test_senders_of_lost_servers_are_shut_down(plugin):
    transfer = Transfer(lambda receiver: plugin.Rendezvous(rank=0), deadline_s=20)
    snapshot, ended = transfer.write({"w": torch.zeros(3)}, 1), plugin.Sending.num_ended
    for _ in range(3):
        await snapshot.into(Receiving())
        gc.collect()
    last = Receiving()
    await snapshot.into(last)
    async with asyncio.timeout(10):
        while plugin.Sending.num_ended < ended + 3:
            await asyncio.sleep(0.01)
    transfer.close()
    assert plugin.Sending.num_ended == ended + 4


@pytest.mark.parametrize(("url", "workers"), [("http://gpu-2:8000", 1), ("http://127.0.0.1:9", 2)])
def test_ipc_is_for_a_server_on_this_gpu(url, workers):
    receiver = Receiving()
    receiver.url, receiver.num_workers = url, workers
    with pytest.raises(Refused, match=r"as policy\.transfer=ipc needs: use policy\.transfer=nccl"):
        by_ipc(receiver)


async def test_the_sent_weights_are_the_published_ones(plugin):
    """The learner may go on while a server on its way back is given the weights before."""
    receiver = Receiving()
    transfer = Transfer(lambda receiver: plugin.Rendezvous(rank=0), deadline_s=20)
    weights = {"w": torch.zeros(3), "tied": torch.ones(2)}
    # A state_dict has another tensor object for each name of a tied weight.
    weights["head"] = weights["tied"].detach()
    snapshot = transfer.write(weights, 1)
    weights["w"] += 1
    await snapshot.into(receiver)
    assert {name: tensor.tolist() for name, tensor in receiver.got.items()} == {
        "w": [0.0, 0.0, 0.0],
        "tied": [1.0, 1.0],
        "head": [1.0, 1.0],
    }
    assert snapshot._weights["tied"] is snapshot._weights["head"], "a tied weight has one copy"
    verbs = ["start_weight_update", "update_weights", "finish_weight_update"]
    assert receiver.verbs == ["init_weight_transfer_engine", *verbs]
    await transfer.write(weights, 2).into(receiver)
    assert receiver.verbs[4:] == verbs
    assert receiver.got["w"].tolist() == [1.0, 1.0, 1.0]


def test_nccl_meets_at_this_machines_address_with_all_workers(plugin):
    met = by_nccl(Receiving())
    assert (met.master_address, met.world_size, met.rank) == ("127.0.0.1", 5, 0)
    assert met.backend == "nccl"
    assert 0 < met.master_port < 2**16
