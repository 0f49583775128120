"""Servers that cannot be started or reached: the error says why."""

from __future__ import annotations

import pytest
from tiny_served import new_model

from agents.policy import PolicyFailure
from agents.serving import ManagedServer
from agents.vllm import VLLMClient, VLLMServerProcess

START_S = 420.0


async def test_a_server_that_cannot_start_reports_why(server_config, open_policy):
    broken = server_config(arguments=("--max-num-seqs", "none"))
    with pytest.raises(PolicyFailure, match=r"ended during its start: .*max-num-seqs"):
        await open_policy(
            new_model(),
            lambda prober: ManagedServer(prober, runner=VLLMServerProcess(broken), start_s=START_S),
        )


async def test_a_missing_interpreter_is_named(server_config, open_policy):
    nowhere = server_config(python="/nowhere/python")
    with pytest.raises(PolicyFailure, match="cannot be started by /nowhere/python"):
        await open_policy(
            new_model(), lambda prober: ManagedServer(prober, runner=VLLMServerProcess(nowhere))
        )


async def test_a_url_without_a_server_is_reported_within_its_deadline(open_policy):
    with pytest.raises(PolicyFailure, match=r"127\.0\.0\.1:9 was not there after 0\.5 s"):
        await open_policy(
            new_model(),
            lambda prober: ManagedServer(
                prober, connect=VLLMClient.at("http://127.0.0.1:9"), short_s=0.5
            ),
        )
