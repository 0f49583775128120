"""Opens the configured policy of a run."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import importlib.util
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from agents.local import Limits, LocalPolicy, TorchThread
from agents.policy import Policy
from agents.serving import (
    PROBE_TOKENS,
    ManagedServer,
    Prober,
    Timeouts,
    WeightFolders,
    WeightPublisher,
)
from agents.vllm import (
    RENDEZVOUS,
    EngineConfig,
    ServerConfig,
    Transfer,
    VLLMClient,
    VLLMEnginePolicy,
    VLLMEngineProcess,
    VLLMServerPolicy,
    VLLMServerProcess,
)
from agents.vllm.arguments import MAX_RANK, StartConfig, parse_pairs, split_words
from agents.vllm.engine_process import NOT_INSTALLED
from rl.errors import UsageError
from rl.learner.local import LocalWeights, load_policy_model
from rl.learner.lora import base_of
from rl.learner.seam import Learner, LearnerSpec, ModelFacts
from rl.settings.lora import NO_LORA, LoraConfig
from rl.settings.policy import VLLMConfig, VLLMEngineConfig, VLLMServerConfig
from rl.settings.run import RunConfig
from rl.settings.train import TrainConfig


def cores_of_learner(config: RunConfig, own_weights: bool) -> int:
    """The number of the learner's cores; a policy that samples meanwhile has the others."""
    cores = config.num_threads
    return cores - cores // 2 if own_weights else cores


def check_policy(config: RunConfig, device: torch.device, lora: LoraConfig = NO_LORA) -> None:
    """Check that the configured policy is possible here, before slow work starts.

    Raises:
        UsageError: the policy is impossible here.
    """
    settings = config.policy.settings
    if isinstance(settings, VLLMConfig):
        _check_vllm(config, settings, device, lora)
    if not isinstance(settings, VLLMEngineConfig):
        return
    if importlib.util.find_spec("vllm") is None:
        raise UsageError(NOT_INSTALLED)
    if settings.sleep and device.type == "cpu":
        raise UsageError("policy.sleep (True) must be False on a CPU: it frees a GPU's memory")
    if device.index:
        raise UsageError(
            f"device ({device}) must be cuda with policy=vllm-engine, which takes the first GPU it "
            f"sees: set CUDA_VISIBLE_DEVICES={device.index}"
        )


def _check_vllm(
    config: RunConfig, settings: VLLMConfig, device: torch.device, lora: LoraConfig
) -> None:
    """Check the settings of vLLM, in servers and in this process."""
    if 0 < config.context_length < PROBE_TOKENS:
        raise UsageError(
            f"context_length ({config.context_length}) must be at least {PROBE_TOKENS} with vLLM: "
            "the probe that verifies each update has that many tokens"
        )
    if lora.rank > MAX_RANK:
        raise UsageError(f"lora.rank ({lora.rank}) must be at most {MAX_RANK} with vLLM")
    if not (isinstance(settings, VLLMServerConfig) and settings.urls):
        _check_cut(config, device)
    if settings.transfer != "files":
        if lora.rank:
            raise UsageError(
                f"policy.transfer ({settings.transfer}) must be files with lora.rank "
                f"({lora.rank}): an adapter is handed over alone, as files"
            )
        _check_transfer(config, settings, device)


def _check_transfer(config: RunConfig, settings: VLLMConfig, device: torch.device) -> None:
    """Check that vLLM's own transfer of weights is possible here."""
    asked = f"policy.transfer ({settings.transfer})"
    if isinstance(config, TrainConfig) and config.learner != "local":
        raise UsageError(
            f"{asked} must be files with learner={config.learner}: vLLM's transfer sends the "
            "tensors of a model in this process"
        )
    elsewhere = isinstance(settings, VLLMServerConfig) and settings.urls
    if device.type != "cuda":
        raise UsageError(f"{asked} must be files on a {device.type}: the transfer needs GPUs")
    if isinstance(settings, VLLMEngineConfig) and settings.transfer == "nccl":
        raise UsageError(f"{asked} must be ipc or files with policy=vllm-engine: both share a GPU")
    if settings.transfer == "nccl" and not elsewhere and not device.index:
        raise UsageError(
            f"{asked} needs the learner on another GPU than the servers that the run starts, which "
            f"take the first: device ({device}) must be cuda:1, say; or policy.transfer=ipc"
        )
    if settings.weights:
        raise UsageError(f"policy.weights ({settings.weights}) must be empty with {asked}: no file")
    if importlib.util.find_spec("vllm") is None:
        raise UsageError(
            f"{asked} needs vLLM in this interpreter as well, which sends the weights: "
            "pip install 'turnwise[vllm]', or give policy.transfer=files"
        )


def _check_cut(config: RunConfig, device: torch.device) -> None:
    """Check that vLLM can return the tokens that top-p and top-k leave, if training needs them."""
    sampling = config.sampling_params
    if not sampling.needs_support:
        return
    if device.type == "cpu":
        raise UsageError(
            f"sampling.top_p ({sampling.top_p}) must be 1 and sampling.top_k ({sampling.top_k}) 0 "
            "with vLLM on a CPU: it does not return the tokens that they left, which importance "
            "ratios need; policy=local returns them"
        )
    if not sampling.top_k:
        raise UsageError(
            f"sampling.top_k (0) must be above 0 with vLLM and sampling.top_p ({sampling.top_p}): "
            "it returns at most top_k of the tokens that could be sampled"
        )
    # vLLM returns supports with every response, of the whole vocabulary without a top_k.
    if isinstance(config, TrainConfig) and not (config.eval.top_k and config.eval.temperature):
        raise UsageError(
            f"eval.top_k ({config.eval.top_k}) and eval.temperature ({config.eval.temperature}) "
            "must be above 0 with vLLM if training uses top_p or top_k: vLLM then takes no greedy "
            "request, and returns every token without a top_k"
        )


@dataclass(frozen=True, slots=True)
class WeightSource:
    """The weights that a policy samples from."""

    learner: Learner
    spec: LearnerSpec
    """The specification that the learner was opened with."""
    thread: TorchThread | None
    """Computes for policy and learner in turns; None: both compute concurrently, and a local policy
    has its own weights and thread."""


async def open_policy(
    config: RunConfig,
    source: WeightSource,
    *,
    logs: Path | None,
    report: Callable[[str], None],
    stack: AsyncExitStack,
) -> Policy:
    """The configured policy, sampling from the learner's weights.

    Args:
        config: the run's settings.
        source: the weights.
        logs: a folder for the logs of servers; None: they are dropped.
        report: called with a line for the user.
        stack: closes the policy at the end.

    Raises:
        PolicyFailure: a server cannot be started or reached, or does not load the weights.
    """
    if isinstance(config.policy.settings, VLLMConfig):
        return await _open_vllm(config, source, logs, report, stack)
    return await _open_local(config, source, stack)


async def _open_local(
    config: RunConfig, source: WeightSource, stack: AsyncExitStack
) -> LocalPolicy:
    """The policy of this process, with the learner's own weights if both take turns."""
    learner, thread = source.learner, source.thread
    weights = await learner.weights(learner.version)
    in_place = isinstance(weights, LocalWeights)
    if isinstance(weights, LocalWeights):
        model = weights.model if thread is not None else copy.deepcopy(weights.model)
    else:
        model = await asyncio.to_thread(load_policy_model, source.spec)
    policy = LocalPolicy(
        model,
        source.spec.tokenizer,
        max_slots=config.sampling.slots,
        # As long as an episode's own deadline, which acts first.
        limits=Limits(
            thread=thread,
            num_threads=max(1, config.num_threads // 2),
            completion_s=config.episode_timeout_s,
            wave_s=config.episode_timeout_s,
        ),
        seed=config.seed,
        deterministic=config.deterministic,
        shares_weights=in_place and thread is not None,
    )
    stack.push_async_callback(policy.close)
    if not in_place:
        await policy.load_weights(await weights.tensors(complete=True), weights.version)
    return policy


async def _open_vllm(
    config: RunConfig,
    source: WeightSource,
    logs: Path | None,
    report: Callable[[str], None],
    stack: AsyncExitStack,
) -> VLLMServerPolicy:
    settings = config.policy.settings
    assert isinstance(settings, VLLMConfig)
    learner, facts = source.learner, source.learner.facts
    adapter = facts.adapter
    start = StartConfig(
        model=base_of(source.spec.model),
        lora_rank=adapter["r"] if adapter is not None else 0,
        lora_targets=tuple(adapter["target_modules"]) if adapter is not None else (),
        context_window=config.context_length or facts.context_window,
        dtype=facts.dtype,
        cpu=facts.device == "cpu",
        # A server keeps one core for requests.
        threads=max(1, config.num_threads - 1),
        max_num_seqs=config.sampling.slots,
        supports=config.sampling_params.needs_support,
        transfer="" if settings.transfer == "files" else settings.transfer,
    )
    prober = Prober(
        learner.score,
        facts.vocab_size,
        sampling=config.sampling_params,
        tolerance=settings.tolerance or await learner.tolerance(config.seed),
        seed=config.seed,
    )
    publisher = _publisher(settings, facts)
    policy: VLLMServerPolicy
    if isinstance(settings, VLLMEngineConfig):
        policy = _engine(config, settings, start, publisher, prober, logs)
        report("starting vLLM in this process")
    else:
        assert isinstance(settings, VLLMServerConfig)
        policy = _servers(config, settings, start, publisher, prober, logs)
        if not settings.urls:
            report(f"starting vLLM, {settings.replicas} server(s)")
    stack.push_async_callback(policy.close)
    await policy.open()
    weights = await learner.weights(learner.version)
    await policy.load_weights(await weights.tensors(), weights.version)
    report(f"vLLM: {policy.description}")
    return policy


def _servers(
    config: RunConfig,
    settings: VLLMServerConfig,
    start: StartConfig,
    publisher: WeightPublisher,
    prober: Prober,
    logs: Path | None,
) -> VLLMServerPolicy:
    server = partial(ManagedServer, prober, start_s=settings.start_s, load_s=settings.load_s)
    if settings.urls:
        servers = [server(connect=VLLMClient.at(url)) for url in settings.urls]
    else:
        common = ServerConfig(
            **dataclasses.asdict(start),
            python=settings.python,
            arguments=split_words(settings.arguments),
        )
        files = [logs / f"vllm-{n}.log" if logs else None for n in range(settings.replicas)]
        configs = [dataclasses.replace(common, log=log) for log in files]
        servers = [server(runner=VLLMServerProcess(one)) for one in configs]
    return VLLMServerPolicy(
        servers,
        publisher,
        prober,
        context_window=start.context_window,
        timeouts=_timeouts(config, settings),
        max_num_seqs=config.sampling.slots,
    )


def _engine(
    config: RunConfig,
    settings: VLLMEngineConfig,
    start: StartConfig,
    publisher: WeightPublisher,
    prober: Prober,
    logs: Path | None,
) -> VLLMEnginePolicy:
    options = dataclasses.asdict(start) | {"log": logs / "vllm-engine.log" if logs else None}
    engine = VLLMEngineProcess(
        EngineConfig(
            **options,
            gpu_memory=settings.gpu_memory,
            sleep=settings.sleep,
            arguments=parse_pairs(settings.arguments),
        )
    )
    return VLLMEnginePolicy(
        engine,
        publisher,
        prober,
        context_window=start.context_window,
        timeouts=_timeouts(config, settings),
        start_s=settings.start_s,
        load_s=settings.load_s,
    )


def _publisher(settings: VLLMConfig, facts: ModelFacts) -> WeightPublisher:
    if settings.transfer != "files":
        return Transfer(RENDEZVOUS[settings.transfer], deadline_s=settings.load_s)
    parent = Path(settings.weights) if settings.weights else None
    return WeightFolders(parent, adapter=facts.adapter)


def _timeouts(config: RunConfig, settings: VLLMConfig) -> Timeouts:
    return Timeouts(request_s=config.episode_timeout_s, stall_s=settings.stall_s)
