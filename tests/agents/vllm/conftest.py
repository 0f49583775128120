"""A real vLLM server of a tiny model, where vLLM is installed.

``TURNWISE_VLLM_PYTHON`` names an interpreter that has it; else this one is looked at.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tiny_served import VOCAB, WINDOW, new_model, prober_of

from agents.serving import ManagedServer, Timeouts, WeightFolders
from agents.vllm import ServerConfig, VLLMClient, VLLMServerPolicy, VLLMServerProcess

START_S = 420.0
"""A server is there after 25 s; on a busy machine it has taken two minutes."""


@pytest.fixture(scope="session")
def vllm_python() -> str:
    """An interpreter with vLLM."""
    given = os.environ.get("TURNWISE_VLLM_PYTHON")
    if given:
        return given
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed here, and TURNWISE_VLLM_PYTHON names no interpreter")
    return sys.executable


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory) -> Path:
    """The model and a tokenizer of bytes on disk."""
    from rl.data.conversations import Conversation, Exchange
    from rl.runtime.tiny import train_tokenizer

    folder = tmp_path_factory.mktemp("vllm-model")
    new_model().save_pretrained(folder)
    texts = Conversation((Exchange("Say what is 6 x 7.", "It is 42, I think."),))
    train_tokenizer([texts], VOCAB).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def server_config(vllm_python, model_folder, tmp_path_factory) -> Callable[..., ServerConfig]:
    """How a server of the tiny model is started."""
    log = tmp_path_factory.mktemp("vllm-logs") / "server.log"
    return partial(
        ServerConfig,
        model=str(model_folder),
        context_window=WINDOW,
        dtype="float32",
        python=vllm_python,
        log=log,
    )


@pytest.fixture(scope="session")
def server(server_config):
    """A server that the tests of this session share; those that end it start their own."""
    process = VLLMServerProcess(server_config())

    async def start() -> None:
        await process.start()
        connect = VLLMClient.at(process.url)
        managed = ManagedServer(prober_of(new_model()), connect=connect, short_s=START_S)
        await managed.open()
        await managed.close()

    with asyncio.Runner() as runner:
        runner.run(start())
        yield process
        runner.run(process.stop())


@pytest.fixture
async def open_policy(tmp_path):
    """Opens policies on servers, and closes them in the end."""
    opened = []

    async def open_one(model, make_server, *, count: int = 1, stall_s: float = 60.0, **probing):
        prober = prober_of(model, **probing)
        policy = VLLMServerPolicy(
            [make_server(prober) for _ in range(count)],
            WeightFolders(tmp_path / "weights"),
            prober,
            context_window=WINDOW,
            timeouts=Timeouts(request_s=START_S, stall_s=stall_s),
        )
        opened.append(policy)
        await policy.open()
        return policy

    yield open_one
    for policy in opened:
        await policy.close()
