"""One vLLM server over HTTP: its verbs, each with a deadline."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from agents.completion import Completion, SamplingParams
from agents.vllm.adapter import ADAPTER, held, how_to_start, is_adapter, link_of, turn
from agents.vllm.errors import Broken, Refused, Unreachable
from agents.vllm.instance import Handover, Instance
from agents.vllm.protocol import (
    ENDPOINTS,
    Endpoint,
    Verb,
    completion_of,
    prompt_logprobs_of,
    request_body,
    transfer_body,
)
from agents.vllm.sampling import UNBOUNDED, Asked, BadAnswer, NoSupport, sampling_parameters

logger = logging.getLogger(__name__)
FIRST = -(2**30)
"""The priority of what must not wait behind completions."""
_PROGRESS = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
_LATER = (408, 425, 429)
"""Answers of the 400s that do not mean that the request is wrong."""
_TOLD = 300
"""Characters of a server's error that are passed on."""


_REUSED_S = 2.0
"""A connection that was idle for longer is not used again: a server closes it after 5 s, and a
request that is sent at that moment is lost."""


def open_session() -> aiohttp.ClientSession:
    """Connections to servers; whoever opens them closes them."""
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_REUSED_S)
    return aiohttp.ClientSession(connector=connector, trust_env=False)


class Replica:
    """One server.

    Args:
        url: where it listens, without a path.
        session: whose connections are used.
        short_s: deadline of everything that generates nothing, in seconds.
        load_s: deadline of loading weights.
    """

    def __init__(
        self, url: str, session: aiohttp.ClientSession, *, short_s: float, load_s: float
    ) -> None:
        self.url = url.rstrip("/")
        self._session = session
        self._short_s = short_s
        self._load_s = load_s
        self.model = ""
        """What requests name: the model, or the adapter once it is known."""
        self._adapter: str | None = None
        """The path that the adapter's name stands for on the server."""
        self.context_window = 0
        self.path: Endpoint = "generate"
        self.max_num_seqs: int | None = None
        """Requests that it computes at once; None where it does not tell."""
        self.by_priority = False
        """Whether it serves requests in the order of their priorities."""
        self.num_workers = 1
        """Processes that hold its weights."""
        self.tells_supports = False
        """Whether it tells what top-k and top-p left (``--return-sampling-mask``)."""
        self.num_running = 0
        """Requests that it was sent and has not answered."""

    async def describe(self) -> None:
        """Learn its model's name, its window, and which endpoint it has.

        Raises:
            Unreachable: it does not answer.
            Refused: it is no vLLM that can be used.
        """
        models = await self._call("GET", "/v1/models", self._short_s)
        try:
            about = models["data"][0]
            self._adapter = next((m["root"] for m in models["data"] if m["id"] == ADAPTER), None)
            self.model, self.context_window = str(about["id"]), int(about["max_model_len"])
        except (KeyError, IndexError, TypeError) as error:
            raise Refused(f"{self.url} says nothing of its model: is it a vLLM server?") from error
        parameters = sampling_parameters(SamplingParams(max_tokens=1))
        body = request_body("generate", self.model, [0], parameters, request_id="-", salt="-")
        try:
            # Without its token ids the request is wrong, which only the endpoint itself can say.
            await self._call(
                "POST", ENDPOINTS["generate"], self._short_s, {**body, "token_ids": []}
            )
        except Refused as refusal:
            self.path = "completions" if refusal.status == 404 else "generate"
        await self._describe_itself()

    async def generate(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        *,
        request_id: str,
        version: int,
        priority: int,
        deadline_s: float,
    ) -> Completion:
        """One completion.

        Raises:
            Unreachable: the server does not answer in time, or is broken.
            Refused: the request is wrong.
        """
        asked = self._asked(prompt_ids, sampling, version)
        body = self._body(prompt_ids, sampling, request_id, str(version), priority=priority)
        answer = await self._ask(body, deadline_s)
        # This endpoint tells no versions; one that was started again has a label of its own.
        if self.path == "completions" and (told := await self.version()) != str(version):
            raise Broken(f"{self.url} has weights {told!r}, not {version}: was it started again?")
        try:
            return completion_of(self.path, answer, asked)
        except BadAnswer as bad:
            raise Broken(f"{self.url} cannot be believed: {bad}") from bad
        except NoSupport as missing:
            raise Refused(f"{self.url}: {missing}") from missing

    async def probe(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, version: int
    ) -> tuple[list[float], Completion]:
        """The log-probabilities of a prompt's tokens, and a completion with those of its own.

        Returns:
            Those of the prompt from its second token on, at temperature 1; and what is sampled.

        Raises:
            Unreachable, Refused: as :meth:`generate`.
        """
        name = f"probe-{version}"
        body = self._body(prompt_ids, sampling, name, name, priority=FIRST, prompt=True)
        answer = await self._ask(body, self._load_s)
        asked = self._asked(prompt_ids, sampling, version)
        try:
            return prompt_logprobs_of(answer, prompt_ids), completion_of(self.path, answer, asked)
        except BadAnswer as bad:
            raise Broken(f"{self.url} cannot be believed: {bad}") from bad
        except NoSupport as missing:
            raise Refused(f"{self.url}: {missing}") from missing

    async def load(self, given: Handover, version: int) -> None:
        """Pause, load the weights or the adapter that are given, label them, go on.

        Requests that are running go on with the new weights; their keys and values are computed
        anew. Where the endpoint does not tell versions, the pause waits for them instead.
        A failure leaves the server paused: another :meth:`load` may repair it, a request would
        end it.

        Raises:
            Unreachable: the server does not answer in time, or could not load them.
            Refused: it does not know these verbs, or takes no such adapter.
        """
        mode = "keep" if self.path == "generate" else "wait"
        # Before the pause: a server that takes no adapters refuses here, and goes on.
        known = isinstance(given, Path) and is_adapter(given) and await self._know_adapter(given)
        try:
            await self._call("POST", f"/pause?mode={mode}&clear_cache=true", self._load_s)
            await self._take(given, known=known)
            label = {"new_version": str(version)}
            await self._call("POST", "/update_weight_version", self._short_s, label)
            await self._call("POST", "/resume", self._short_s)
        except Refused as refusal:
            raise Refused(
                f"{refusal}; weights are loaded by /pause, /collective_rpc and "
                f"/update_weight_version: start the server with VLLM_SERVER_DEV_MODE=1"
            ) from refusal

    async def _take(self, given: Handover, *, known: bool) -> None:
        """Have it read what is given; ``known``: it has read an adapter under its name before."""
        if not isinstance(given, Path):
            await given.into(self)
        elif known:
            for number in held(await self._on_workers({"method": "list_loras"})):
                await self._on_workers({"method": "remove_lora", "args": [number]})
        elif not is_adapter(given):
            path = {"weights_path": str(given)}
            await self._on_workers({"method": "reload_weights", "kwargs": path})

    async def transfer(self, verb: Verb, told: Mapping[str, Any]) -> None:
        """Tell it a verb of vLLM's own transfer of weights.

        Raises:
            Unreachable: it does not answer in time, or fails.
            Refused: it was started without that transfer.
        """
        try:
            await self._call("POST", f"/{verb}", self._load_s, transfer_body(told))
        except Unreachable as error:
            # It stays so until it is started again, which only its owner can do.
            if verb == "start_weight_update" and "already active" in str(error):
                raise Refused(
                    f"{self.url} was given up in the middle of an update: start it again"
                ) from error
            raise

    async def _know_adapter(self, folder: Path) -> bool:
        """Have the adapter's name stand for ``folder``; whether it was known, and is to be read."""
        link = link_of(folder, self.url)
        name = {"lora_name": ADAPTER}
        try:
            turn(link, folder)
            if self._adapter == str(link):
                return True
            if self._adapter is not None:  # a former run's
                await self._call(
                    "POST", "/v1/unload_lora_adapter", self._short_s, name, as_text=True
                )
            path = name | {"lora_path": str(link)}
            await self._call("POST", "/v1/load_lora_adapter", self._load_s, path, as_text=True)
        except OSError as error:
            raise Refused(f"{link} cannot be written: {error}") from error
        except (Refused, Unreachable) as error:
            # What is wrong with an adapter it answers as if it were broken itself.
            if isinstance(error, Refused) or "LoRA" in str(error):
                raise Refused(f"{error}; {how_to_start(folder)}") from error
            raise
        self._adapter, self.model = str(link), ADAPTER
        return False

    async def _on_workers(self, call: Mapping[str, Any]) -> Any:
        return await self._call("POST", "/collective_rpc", self._load_s, call)

    async def version(self) -> str:
        """The label of the weights that it runs.

        Raises:
            Unreachable: it does not answer.
            Refused: it has no labels.
        """
        answer = await self._call("GET", "/weight_info", self._short_s)
        return str(answer.get("weight_version"))

    async def num_tokens(self) -> float | None:
        """Tokens that it has read and sampled since it was started; None where it does not count.

        Raises:
            Unreachable: it does not answer.
        """
        try:
            text = await self._call("GET", "/metrics", self._short_s, as_text=True)
            lines = [line for line in text.splitlines() if line.startswith(_PROGRESS)]
            return sum(float(line.rpartition(" ")[2]) for line in lines) if lines else None
        except (Refused, ValueError):
            return None

    async def _describe_itself(self) -> None:
        """Learn how it was started: developers' servers tell."""
        try:
            told = await self._call("GET", "/server_info?config_format=json", self._short_s)
            scheduler = told["vllm_config"]["scheduler_config"]
            model = told["vllm_config"].get("model_config") or {}
            parallel = told["vllm_config"].get("parallel_config") or {}
            self.max_num_seqs = int(scheduler["max_num_seqs"])
            self.by_priority = scheduler["policy"] == "priority"
            sizes = (parallel.get(name) or 1 for name in ("world_size", "data_parallel_size"))
            self.num_workers = math.prod(map(int, sizes))
            self.tells_supports = model.get("return_sampling_mask") is True
        except (Refused, AttributeError, KeyError, TypeError, ValueError) as error:
            logger.warning("%s does not tell how many requests it computes: %r", self.url, error)

    def _asked(self, prompt_ids: Sequence[int], sampling: SamplingParams, version: int) -> Asked:
        return Asked.of(prompt_ids, sampling, self.context_window, version)

    def _body(
        self,
        prompt_ids: Sequence[int],
        sampling: SamplingParams,
        request_id: str,
        salt: str,
        *,
        priority: int,
        prompt: bool = False,
    ) -> dict[str, Any]:
        if self.tells_supports and not sampling.top_k:
            raise Refused(f"{self.url} {UNBOUNDED}")
        return request_body(
            self.path,
            self.model,
            prompt_ids,
            sampling_parameters(sampling, prompt_logprobs=prompt),
            request_id=request_id,
            salt=salt,
            priority=priority if self.by_priority else 0,
        )

    async def _ask(self, body: Mapping[str, Any], deadline_s: float) -> Any:
        self.num_running += 1
        try:
            return await self._call("POST", ENDPOINTS[self.path], deadline_s, body)
        except Refused as refusal:
            if refusal.status == 404 and self.model == ADAPTER:
                raise Broken(f"{refusal}: was it started again?") from refusal
            raise
        finally:
            self.num_running -= 1

    async def _call(
        self,
        method: str,
        path: str,
        deadline_s: float,
        body: Mapping[str, Any] | None = None,
        *,
        as_text: bool = False,
    ) -> Any:
        timeout = aiohttp.ClientTimeout(total=deadline_s)
        # After a 500 the server closes a connection that it has just promised to keep.
        headers = {} if path in ENDPOINTS.values() else {"Connection": "close"}
        try:
            async with self._session.request(
                method, self.url + path, json=body, timeout=timeout, headers=headers
            ) as response:
                text = await response.text()
                status = response.status
        except TimeoutError as error:
            raise Unreachable(f"{self.url}{path} did not answer within {deadline_s:g} s") from error
        # A session that was closed says so by a RuntimeError; bytes may be no text.
        except (aiohttp.ClientError, OSError, RuntimeError, UnicodeDecodeError) as error:
            raise Unreachable(f"{self.url}{path}: {type(error).__name__}: {error}") from error
        if status >= 500 or status in _LATER:
            raise Unreachable(f"{self.url}{path} answered {status}: {_error_in(text)}")
        if status >= 400:
            raise Refused(f"{self.url}{path} answered {status}: {_error_in(text)}", status)
        if as_text:
            return text
        try:
            return json.loads(text) if text else {}
        except json.JSONDecodeError as error:
            raise Unreachable(f"{self.url}{path} answered no JSON: {text[:_TOLD]}") from error


def _error_in(text: str) -> str:
    """What a server says went wrong."""
    try:
        message = json.loads(text)["error"]["message"]
    except (json.JSONDecodeError, KeyError, TypeError):
        message = text
    return str(message)[:_TOLD]


async def ready(
    replica: Instance, within_s: float, *, refusing: bool = False, every_s: float = 0.25
) -> None:
    """Wait until the server answers.

    Args:
        replica: the server.
        within_s: deadline.
        refusing: whether one that refuses is waited for as well: what stands before a server that
            is on its way back may answer in its place.
        every_s: between two attempts.

    Raises:
        Unreachable: it does not within that time.
        Refused: it refuses.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + within_s
    while True:
        try:
            return await replica.describe()
        except (Unreachable, Refused) as error:
            if isinstance(error, Refused) and not refusing:
                raise
            if loop.time() >= end:
                raise Unreachable(f"{replica.url} was not there after {within_s:g} s") from error
        await asyncio.sleep(every_s)
