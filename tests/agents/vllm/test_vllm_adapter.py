"""LoRA adapters on a scripted server: requests, and possible responses."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from scripted_vllm import NumberProber, ScriptedServer

from agents.completion import SamplingParams
from agents.policy import PolicyFailure
from agents.serving import ManagedServer, Timeouts
from agents.vllm import ServerConfig, VLLMClient, VLLMServerPolicy
from agents.vllm.adapter import ADAPTER, adapter_ids
from agents.vllm.arguments import max_lora_rank
from agents.vllm.server_process import command_line

ONE = SamplingParams(max_tokens=1, seed=1)


class AdapterServer(ScriptedServer):
    """Answers as vLLM does: it reads an adapter when it is asked for a token and holds none."""

    def __init__(self, endpoint: str, *, takes_adapters: bool = True, too_large: str = "") -> None:
        super().__init__(endpoint)
        self.takes_adapters, self.too_large = takes_adapters, too_large
        self.known: dict[str, str] = {}
        self.said: list[str] = []
        self.held: int | None = None

    def restart(self) -> None:
        super().restart()
        self.known, self.held = {}, None

    def app(self) -> web.Application:
        app = super().app()
        if self.takes_adapters:
            app.router.add_post("/v1/load_lora_adapter", self._know)
            app.router.add_post("/v1/unload_lora_adapter", self._forget)
        return app

    def read(self, path: str) -> int:
        return int((Path(path) / "version").read_text())

    async def _models(self, request: web.Request) -> web.Response:
        cards = [{"id": "m", "root": "/m", "max_model_len": 64}]
        cards += [{"id": name, "root": path} for name, path in self.known.items()]
        return web.json_response({"data": cards})

    async def _know(self, request: web.Request) -> web.Response:
        body = await request.json()
        assert "load_inplace" not in body, "each step would read the files again"
        self.said.append("know")
        if self.too_large:
            return web.json_response({"error": {"message": self.too_large}}, status=500)
        if body["lora_name"] in self.known:
            return web.json_response({"error": {"message": "known already"}}, status=400)
        self.known[body["lora_name"]] = body["lora_path"]
        self.held = self.read(body["lora_path"])
        return web.Response(text="Success: it was added.")

    async def _forget(self, request: web.Request) -> web.Response:
        self.said.append("forget")
        del self.known[(await request.json())["lora_name"]]
        return web.Response(text="Success: it was removed.")

    async def _pause(self, request: web.Request) -> web.Response:
        self.said.append("pause")
        return await super()._pause(request)

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.said.append(body["method"])
        if body["method"] == "list_loras":
            return web.json_response({"results": ["{7}" if self.held else "set()"]})
        assert body == {"method": "remove_lora", "args": [7]}
        self.held = None
        return web.json_response({"results": ["True"]})

    async def _generate(self, request: web.Request) -> web.Response:
        body = await request.json()
        prompt = body.get("token_ids", body.get("prompt"))
        if prompt and body["model"] != "m" and body["model"] not in self.known:
            message = f"The model `{body['model']}` does not exist."
            return web.json_response({"error": {"message": message}}, status=404)
        if prompt and body["model"] == ADAPTER and self.held is None:
            self.held = self.read(self.known[ADAPTER])
        self.weights = self.held or self.weights
        return await super()._generate(request)


class AdapterFolders:
    """Writes an adapter that is nothing but its version."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, weights: object, version: int) -> Path:
        folder = self.root / f"version-{version}"
        folder.mkdir()
        (folder / "version").write_text(str(version))
        config = {"r": 12, "target_modules": ["q_proj", "v_proj"]}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        return folder

    def close(self) -> None: ...


class Reading(NumberProber):
    """Has the server read what it was given, as the first token does."""

    async def prove(self, client, version, *, sampled=True, loaded=None):
        about = {"request_id": "probe", "version": version, "priority": 0, "deadline_s": 5}
        await client.generate([1], ONE, **about)
        return await super().prove(client, version, sampled=sampled)


@asynccontextmanager
async def policy_of(script, folder):
    async with TestServer(script.app()) as server:
        prober = Reading(script)
        managed = ManagedServer(
            prober, connect=VLLMClient.at(str(server.make_url(""))), short_s=5, start_s=5, load_s=5
        )
        policy = VLLMServerPolicy(
            [managed],
            AdapterFolders(folder),
            prober,
            context_window=64,
            timeouts=Timeouts(request_s=30.0),
        )
        await policy.open()
        try:
            yield policy
        finally:
            await policy.close()


@pytest.mark.parametrize("endpoint", ["generate", "completions"])
async def test_an_adapter_is_registered_once_and_then_read_again(endpoint, tmp_path):
    script = AdapterServer(endpoint)
    async with policy_of(script, tmp_path) as policy:
        await policy.load_weights({}, 1)
        assert script.said == ["know", "pause"]
        (path,) = script.known.values()
        assert Path(path).parent == tmp_path
        assert Path(path).resolve() == tmp_path / "version-1"
        for version in (2, 3):
            script.said.clear()
            await policy.load_weights({}, version)
            assert script.said == ["pause", "list_loras", "remove_lora"]
            completion = await policy.generate([4], ONE)
            assert completion.token_ids == completion.versions == (version,)
        assert script.known == {ADAPTER: path}, "requests that run have this path"
        assert Path(path).resolve() == tmp_path / "version-3"


async def test_tokens_of_running_requests_are_labelled_by_the_adapter_that_sampled_them(tmp_path):
    script = AdapterServer("completions")
    async with policy_of(script, tmp_path) as policy:
        await policy.load_weights({}, 1)
        calls = [asyncio.create_task(policy.generate([n], ONE)) for n in range(3)]
        await asyncio.sleep(0.05)
        await policy.load_weights({}, 2)
        for completion in await asyncio.gather(*calls):
            assert completion.versions == completion.token_ids


@pytest.mark.parametrize("endpoint", ["generate", "completions"])
async def test_a_server_restarted_by_its_owner_gets_the_adapter_again(endpoint, tmp_path):
    script = AdapterServer(endpoint)
    async with policy_of(script, tmp_path) as policy:
        for version in (1, 2):
            await policy.load_weights({}, version)
        script.restart()
        script.said.clear()
        completion = await policy.generate([3], ONE)
        assert (completion.token_ids, completion.versions) == ((2,), (2,))
        assert script.said == ["know", "pause"]
        assert policy.take_metrics()["policy/reissued"] == 1


async def test_a_name_that_a_former_run_left_is_taken_over(tmp_path):
    script = AdapterServer("generate")
    script.known[ADAPTER] = "/gone/adapter-127-0-0-1-8000"
    async with policy_of(script, tmp_path) as policy:
        await policy.load_weights({}, 1)
        assert script.said == ["forget", "know", "pause"]
        assert (await policy.generate([3], ONE)).token_ids == (1,)


START = (
    "an adapter of rank 12 is loaded by /v1/load_lora_adapter: start the server with "
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, --enable-lora, --max-lora-rank 16 and "
    "--lora-target-modules q_proj v_proj"
)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({"takes_adapters": False}, "answered 404"),
        ({"too_large": "LoRA rank 12 is greater than max_lora_rank 8."}, "LoRA rank 12 is greater"),
        ({"too_large": "LoRA is not enabled."}, "LoRA is not enabled."),
    ],
)
async def test_a_server_without_support_for_the_adapter_is_reported_with_the_fix(
    server, message, tmp_path
):
    script = AdapterServer("generate", **server)
    async with policy_of(script, tmp_path) as policy:
        with pytest.raises(PolicyFailure) as failure:
            await policy.load_weights({}, 1)
        assert message in str(failure.value)
        assert str(failure.value).endswith(START)
        assert "\n" not in str(failure.value)
        assert not failure.value.retryable
        assert script.goes.is_set(), "it was left paused"


def test_adapter_ids_are_read_from_the_workers_responses():
    assert adapter_ids({"results": ["{1, 12}", "{1}"]}) == [1, 12]
    assert adapter_ids({"results": ["set()"]}) == []
    assert adapter_ids({}) == []


def test_a_server_is_started_with_room_for_the_adapter():
    assert [max_lora_rank(rank) for rank in (1, 2, 8, 9, 257, 512)] == [1, 8, 8, 16, 320, 512]
    targets = ("q_proj", "v_proj")
    with_lora = ServerConfig(model="m", context_window=64, lora_rank=12, lora_targets=targets)
    words = " ".join(command_line(with_lora, 1))
    assert "--enable-lora --max-loras 1 --max-lora-rank 16" in words
    assert "--lora-target-modules q_proj v_proj --" in words
    assert "lora" not in " ".join(command_line(ServerConfig(model="m", context_window=64), 1))
