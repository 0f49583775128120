"""A client of one vLLM server, over HTTP. Every call has a deadline."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp

from agents.completion import Completion, SamplingParams
from agents.digests.comparison import LoadedDigests
from agents.digests.turnwise_digests import EXTENSION
from agents.serving.client import FIRST, Connect, MakeClient, PublishedWeights, copier
from agents.serving.errors import Broken, Refused, Unreachable
from agents.serving.http import call
from agents.vllm.adapter import (
    ADAPTER,
    adapter_ids,
    how_to_start,
    is_adapter,
    link_of,
    point_link,
)
from agents.vllm.protocol import (
    ENDPOINTS,
    Endpoint,
    Verb,
    completion_of,
    prompt_logprobs_of,
    request_body,
    transfer_body,
)
from agents.vllm.sampling import UNBOUNDED, BadAnswer, Expected, NotReported, sampling_parameters

logger = logging.getLogger(__name__)
_PROGRESS = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")


class VLLMClient:
    """Sends requests to one server.

    Args:
        url: the server's URL, without a path.
        session: HTTP connections to use.
        short_s: deadline of calls that generate nothing, in seconds.
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
        """Model name in requests: the model or, after it is registered, the adapter."""
        self._adapter: str | None = None
        """The path under which the server knows the adapter, or None if it knows none."""
        self.context_window = 0
        self.vllm_version = "unknown"
        """The server's version of vLLM."""
        self.endpoint: Endpoint = "generate"
        self.max_num_seqs: int | None = None
        """Number of requests that the server computes at the same time, or None if unknown."""
        self.by_priority = False
        """Whether the server schedules by priority."""
        self.num_workers = 1
        """Number of processes that hold the weights."""
        self.reports_support = False
        """Whether the server reports the sampling support (``--return-sampling-mask``)."""
        self.reports_digests = False
        """Whether the workers report digests of their parameters (``--worker-extension-cls``)."""
        self.num_running = 0
        """Number of requests without a response."""
        self._cache_sleeps = False
        """Whether the cache of keys and values has no memory, since :meth:`sleep`."""

    @classmethod
    def at(cls, url: str) -> Connect:
        """A function that connects to the server at ``url``, for a ``ManagedServer``."""
        return partial(cls, url)

    def copied(self) -> MakeClient:
        """Makes equal clients; see :class:`~agents.serving.client.CopiedClient`."""
        return copier(self, "_session")

    @property
    def reports_versions(self) -> bool:
        """Whether each completion reports the weight version of every token."""
        return self.endpoint == "generate"

    async def describe(self) -> None:
        """Query the server's model name, context window, endpoint and scheduler.

        Raises:
            Unreachable: the server does not answer.
            Refused: the server is not a usable vLLM server.
        """
        models = await self._call("GET", "/v1/models", self._short_s)
        try:
            about = models["data"][0]
            self._adapter = next((m["root"] for m in models["data"] if m["id"] == ADAPTER), None)
            self.model, self.context_window = str(about["id"]), int(about["max_model_len"])
        except (KeyError, IndexError, TypeError) as error:
            raise Refused(f"{self.url} reports no model: is it a vLLM server?") from error
        parameters = sampling_parameters(SamplingParams(max_tokens=1))
        body = request_body("generate", self.model, [0], parameters, request_id="-", salt="-")
        try:
            # Without token ids the request is wrong. Only an existing endpoint answers 400 to it.
            await self._call(
                "POST", ENDPOINTS["generate"], self._short_s, {**body, "token_ids": []}
            )
        except Refused as refusal:
            self.endpoint = "completions" if refusal.status == 404 else "generate"
        self.vllm_version = await self._vllm_version()
        await self._describe_scheduler()

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
        """Sample one completion.

        Raises:
            Unreachable: the server does not answer in time, or is broken.
            Refused: the request is wrong.
        """
        body = self._body(prompt_ids, sampling, request_id, str(version), priority=priority)
        answer = await self._ask(body, deadline_s)
        # This endpoint reports no versions, but a restarted server has another label.
        if not self.reports_versions and (label := await self.version()) != str(version):
            raise Broken(f"{self.url} has weights {label!r}, not {version}: was it restarted?")
        expected = Expected.of(prompt_ids, sampling, self.context_window, version)
        return await self._completion(answer, expected)

    async def probe(
        self, prompt_ids: Sequence[int], sampling: SamplingParams, version: int
    ) -> tuple[list[float], Completion]:
        """Score a prompt's tokens, except the first, and sample a completion.

        Returns:
            The prompt's log-probabilities, at temperature 1, and the completion.

        Raises:
            Unreachable, Refused: as :meth:`generate`.
        """
        name = f"probe-{version}"
        body = self._body(prompt_ids, sampling, name, name, priority=FIRST, prompt=True)
        answer = await self._ask(body, self._load_s)
        expected = Expected.of(prompt_ids, sampling, self.context_window, version)
        try:
            return prompt_logprobs_of(answer, prompt_ids), await self._completion(answer, expected)
        except BadAnswer as bad:
            raise Broken(f"{self.url}: invalid response: {bad}") from bad

    async def load(self, weights: PublishedWeights, version: int) -> LoadedDigests | None:
        """Pause the server, load the weights or the adapter, set the version label, and resume.

        Running requests continue with the new weights, for which the server recomputes their keys
        and values. If the endpoint reports no versions, the pause waits until running requests are
        done. After a failure the server stays paused. Another :meth:`load` can repair the server,
        but a request would crash the server.

        Returns:
            The digests of the loaded parameters. None if an adapter was loaded, if the workers
            report no digests, or if the server has several workers.

        Raises:
            Unreachable: the server does not answer in time, or could not load the weights.
            Refused: the server lacks the endpoints for this, or does not support the adapter.
        """
        mode = "keep" if self.reports_versions else "wait"
        # Before the pause: a server without adapters refuses here, and keeps serving.
        known = (
            isinstance(weights, Path)
            and is_adapter(weights)
            and await self._register_adapter(weights)
        )
        try:
            await self._call("POST", f"/pause?mode={mode}&clear_cache=true", self._load_s)
            loaded = await self._receive_watched(weights, known=known)
            label = {"new_version": str(version)}
            await self._call("POST", "/update_weight_version", self._short_s, label)
            if self._cache_sleeps:
                # Last: loading needs room, and vLLM resumes as soon as all memory is back.
                await self._call("POST", "/wake_up?tags=kv_cache", self._load_s, as_text=True)
                self._cache_sleeps = False
            await self._call("POST", "/resume", self._short_s)
            return loaded
        except Refused as refusal:
            raise Refused(
                f"{refusal}; weights are loaded by /pause, /collective_rpc and "
                f"/update_weight_version: start the server with VLLM_SERVER_DEV_MODE=1"
            ) from refusal

    async def sleep(self) -> None:
        """Free the device's memory; see :class:`~agents.serving.client.SleepingClient`.

        Raises:
            Unreachable: the server does not sleep in time.
            Refused: the server was not started with ``--enable-sleep-mode``.
        """
        await self._call("POST", "/sleep?level=1&mode=keep", self._load_s, as_text=True)
        self._cache_sleeps = True

    async def wake(self) -> None:
        """Bring the weights back; the next :meth:`load` brings the cache back, and resumes.

        Raises:
            Unreachable: the server does not wake up in time.
        """
        await self._call("POST", "/wake_up?tags=weights", self._load_s, as_text=True)

    async def _receive_watched(
        self, weights: PublishedWeights, *, known: bool
    ) -> LoadedDigests | None:
        """Make the workers read the weights. Returns the digests of the loaded parameters."""
        is_whole = not (isinstance(weights, Path) and is_adapter(weights))
        if not (is_whole and self.reports_digests and self.num_workers == 1):
            await self._receive(weights, known=known)
            return None
        await self._on_workers({"method": "turnwise_watch_weights"})
        await self._receive(weights, known=known)
        answer = await self._on_workers({"method": "turnwise_weight_digests"})
        return LoadedDigests.of_workers(answer["results"])

    async def _receive(self, weights: PublishedWeights, *, known: bool) -> None:
        """Make the workers read the weights. ``known``: they already hold an older adapter."""
        if not isinstance(weights, Path):
            await weights.into(self)
        elif known:
            for number in adapter_ids(await self._on_workers({"method": "list_loras"})):
                await self._on_workers({"method": "remove_lora", "args": [number]})
        elif not is_adapter(weights):
            path = {"weights_path": str(weights)}
            await self._on_workers({"method": "reload_weights", "kwargs": path})

    async def transfer(self, verb: Verb, arguments: Mapping[str, Any]) -> None:
        """Call one step (a verb) of vLLM's own weight transfer.

        Raises:
            Unreachable: the server does not answer in time, or fails.
            Refused: the server was started without this transfer.
        """
        try:
            await self._call("POST", f"/{verb}", self._load_s, transfer_body(arguments))
        except Unreachable as error:
            # The server stays in this state until its owner restarts it.
            if verb == "start_weight_update" and "already active" in str(error):
                raise Refused(
                    f"{self.url} was interrupted in the middle of an update: restart it"
                ) from error
            raise

    async def _register_adapter(self, folder: Path) -> bool:
        """Point the adapter's path to ``folder``. Returns whether the adapter was registered."""
        link = link_of(folder, self.url)
        name = {"lora_name": ADAPTER}
        try:
            point_link(link, folder)
            if self._adapter == str(link):
                return True
            if self._adapter is not None:  # an earlier run's
                await self._call(
                    "POST", "/v1/unload_lora_adapter", self._short_s, name, as_text=True
                )
            path = name | {"lora_path": str(link)}
            await self._call("POST", "/v1/load_lora_adapter", self._load_s, path, as_text=True)
        except OSError as error:
            raise Refused(f"{link} cannot be written: {error}") from error
        except (Refused, Unreachable) as error:
            # vLLM reports a wrong adapter with a status of 500 as well.
            if isinstance(error, Refused) or "LoRA" in str(error):
                raise Refused(f"{error}; {how_to_start(folder)}") from error
            raise
        self._adapter, self.model = str(link), ADAPTER
        return False

    async def _on_workers(self, command: Mapping[str, Any]) -> Any:
        return await self._call("POST", "/collective_rpc", self._load_s, command)

    async def version(self) -> str:
        """The version label of the server's weights.

        Raises:
            Unreachable: the server does not answer.
            Refused: the server has no labels.
        """
        answer = await self._call("GET", "/weight_info", self._short_s)
        return str(answer.get("weight_version"))

    async def num_tokens(self) -> float | None:
        """Number of tokens read and sampled since the server's start, or None if unknown.

        Raises:
            Unreachable: the server does not answer.
        """
        try:
            text = await self._call("GET", "/metrics", self._short_s, as_text=True)
            lines = [line for line in text.splitlines() if line.startswith(_PROGRESS)]
            return sum(float(line.rpartition(" ")[2]) for line in lines) if lines else None
        except (Refused, ValueError):
            return None

    async def _vllm_version(self) -> str:
        """The server's version of vLLM, or "unknown" if the server does not report it."""
        try:
            return str((await self._call("GET", "/version", self._short_s))["version"])
        except (Refused, KeyError, TypeError):
            return "unknown"

    async def _describe_scheduler(self) -> None:
        """Query the settings with which the server was started.

        Only a server in development mode reports them. For any other server, a warning is logged.
        """
        try:
            info = await self._call("GET", "/server_info?config_format=json", self._short_s)
            scheduler = info["vllm_config"]["scheduler_config"]
            model = info["vllm_config"].get("model_config") or {}
            parallel = info["vllm_config"].get("parallel_config") or {}
            self.max_num_seqs = int(scheduler["max_num_seqs"])
            self.by_priority = scheduler["policy"] == "priority"
            sizes = (parallel.get(name) or 1 for name in ("world_size", "data_parallel_size"))
            self.num_workers = math.prod(map(int, sizes))
            self.reports_support = model.get("return_sampling_mask") is True
            self.reports_digests = parallel.get("worker_extension_cls") == EXTENSION
        except (Refused, AttributeError, KeyError, TypeError, ValueError) as error:
            logger.warning("%s reports no scheduler settings: %r", self.url, error)

    async def _completion(self, answer: Mapping[str, Any], expected: Expected) -> Completion:
        """The checked completion. Supports, which have many ids, are read in a thread."""
        read = partial(completion_of, self.endpoint, answer, expected)
        try:
            return await asyncio.to_thread(read) if expected.needs_support else read()
        except BadAnswer as bad:
            raise Broken(f"{self.url}: invalid response: {bad}") from bad
        except NotReported as missing:
            raise Refused(f"{self.url}: {missing}") from missing

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
        if self.reports_support and not sampling.top_k:
            raise Refused(f"{self.url} {UNBOUNDED}")
        return request_body(
            self.endpoint,
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
            return await self._call("POST", ENDPOINTS[self.endpoint], deadline_s, body)
        except Refused as refusal:
            if refusal.status == 404 and self.model == ADAPTER:
                raise Broken(f"{refusal}: was the server restarted?") from refusal
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
        # After a 500 the server closes a connection that it announced to keep alive.
        return await call(
            *(self._session, method, self.url + path, deadline_s, body),
            as_text=as_text,
            keep_alive=path in ENDPOINTS.values(),
        )
