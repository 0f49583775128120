"""``policy=vllm-server`` and ``policy=vllm-engine``: vLLM in servers, or in this process."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from rl.errors import UsageError
from rl.policies.engine import PolicyContext, RunSettings
from rl.policies.memory import DeviceFacts, PolicyMemory
from rl.policies.serving import ServerEngine, base_model
from rl.policies.vllm_reports import check_reports

if TYPE_CHECKING:
    import torch

    from agents.serving import WeightPublisher
    from agents.vllm import ServerConfig, VLLMEnginePolicy, VLLMServerPolicy
    from agents.vllm.arguments import StartConfig
    from rl.settings.lora import LoraConfig

_ASLEEP = 1 << 30
"""Estimated bytes of a sleeping vLLM on the GPU, for its graphs and buffers."""
_SHARE = 0.4
"""Fraction of the learner's GPU for vLLM if ``gpu_memory`` is 0."""


@dataclass(frozen=True, kw_only=True)
class VLLM(ServerEngine):
    """Settings of vLLM, in servers and in this process."""

    loads_adapters = True

    sleep: bool = False
    """Free vLLM's memory while the learner learns, on one GPU that both use in turns. Needs a
    GPU."""
    transfer: Literal["files", "ipc", "nccl"] = "files"
    """How vLLM gets the weights: "files", or vLLM's own transfer, either between two GPUs ("nccl")
    or on one GPU ("ipc"). vLLM's own transfer needs vLLM in this interpreter as well."""

    @property
    def urls(self) -> list[str]:
        """URLs of servers that are already running. Empty if the run starts vLLM itself."""
        return []

    @property
    def gpu_share(self) -> float:
        """Fraction of the learner's GPU for vLLM, or 0 if vLLM computes elsewhere."""
        return 0.0

    @property
    def sleeps(self) -> bool:
        """Whether vLLM frees its memory while the learner learns."""
        return self.sleep

    def device_memory(self, device: DeviceFacts) -> PolicyMemory:
        """Memory of vLLM on the learner's GPU.

        With ``sleep``, vLLM frees most of it while the learner learns.
        """
        share = int(self.gpu_share * device.capacity) if device.on_gpu else 0
        return PolicyMemory(share, _ASLEEP if self.sleep and share else share)

    def check_staleness(self) -> None:
        """Reject ``sleep``, because a sleeping vLLM cannot sample while the learner learns.

        Raises:
            ValueError: ``sleep`` is set.
        """
        if self.sleep:
            raise ValueError(
                "policy.sleep must be False with staleness above 0: vLLM then samples while "
                "the learner learns"
            )

    def check(self, config: RunSettings, device: torch.device, lora: LoraConfig) -> None:
        """Reject settings that vLLM does not support on this machine.

        Raises:
            UsageError: a setting is not supported.
        """
        from agents.vllm.arguments import MAX_RANK

        if self.sleep and device.type == "cpu":
            raise UsageError("policy.sleep (True) must be False on a CPU: it frees a GPU's memory")
        if lora.rank > MAX_RANK:
            raise UsageError(f"lora.rank ({lora.rank}) must be at most {MAX_RANK} with vLLM")
        if lora.base_bits and self.urls:
            raise UsageError(
                f"lora.base_bits ({lora.base_bits}) must be 0 with policy.url: those servers have "
                "the base model without the learner's rounding; a server that the run starts has it"
            )
        if not self.urls:
            check_reports(config, device)
        if self.transfer != "files":
            self._check_transfer(config, device, lora)
        # Last, because it creates a folder.
        super().check(config, device, lora)

    def publisher(self, context: PolicyContext) -> WeightPublisher:
        """A publisher of weights as files, or by vLLM's own transfer."""
        if self.transfer == "files":
            return super().publisher(context)
        from agents.vllm import RENDEZVOUS, Transfer

        return Transfer(RENDEZVOUS[self.transfer], deadline_s=self.load_s)

    def start_config(self, context: PolicyContext, model: str) -> StartConfig:
        """The settings with which vLLM is started for the base model in the folder ``model``."""
        from agents.vllm.arguments import StartConfig

        config, facts = context.config, context.learner.facts
        adapter = facts.adapter
        return StartConfig(
            model=model,
            lora_rank=adapter["r"] if adapter is not None else 0,
            lora_targets=tuple(adapter["target_modules"]) if adapter is not None else (),
            context_window=context.context_window,
            dtype=facts.dtype,
            cpu=facts.device == "cpu",
            threads=_threads(config.num_threads, alone=context.thread is not None),
            max_num_seqs=config.sampling.slots,
            supports=config.sampling_params.needs_support,
            experts=config.sampling_params.with_experts,
            transfer="" if self.transfer == "files" else self.transfer,
            gpu_memory=self.gpu_share,
            sleep=self.sleep,
        )

    def _check_transfer(self, config: RunSettings, device: torch.device, lora: LoraConfig) -> None:
        """Reject settings with which vLLM's own transfer of weights is impossible."""
        setting = f"policy.transfer ({self.transfer})"
        if lora.rank:
            raise UsageError(
                f"{setting} must be files with lora.rank ({lora.rank}): an adapter is transferred "
                "as files"
            )
        learner = config.effective_learner
        if not learner.in_process:
            raise UsageError(
                f"{setting} must be files with learner={learner.name}, "
                f"learner.ranks={learner.settings.ranks}: vLLM's transfer sends the "
                "tensors of a model in this process"
            )
        if device.type != "cuda":
            raise UsageError(f"{setting} must be files on a {device.type}: the transfer needs GPUs")
        if self.gpu_share and self.transfer == "nccl":
            raise UsageError(
                f"{setting} must be ipc or files with policy={config.policy.name}: both share a GPU"
            )
        if self.weights:
            raise UsageError(
                f"policy.weights ({self.weights}) must be empty with {setting}: no file is written"
            )
        if importlib.util.find_spec("vllm") is None:
            raise UsageError(
                f"{setting} needs vLLM in this interpreter as well, which sends the weights: "
                "pip install 'turnwise[vllm]', or give policy.transfer=files"
            )


def _threads(cores: int, *, alone: bool) -> int:
    """Number of threads with which vLLM computes on a CPU.

    vLLM's scheduler and server need a core of their own: with a thread on each of two cores, vLLM
    sampled about half as many tokens per second as with one thread.

    Args:
        cores: number of cores for the whole run.
        alone: whether the learner waits while vLLM samples. If not, the learner has half of the
            cores (``rl.runtime.model.cores_of_learner``).
    """
    return max(1, cores - 1 if alone else cores // 2)


@dataclass(frozen=True, kw_only=True)
class VLLMServers(VLLM):
    """vLLM servers, which load the learner's weights after each update."""

    admits_guests = True

    url: str = ""
    """URLs of running servers, separated by commas. If empty, the run starts its own servers."""
    replicas: int = 1
    """Number of servers that the run starts."""
    python: str = sys.executable
    """The Python interpreter that has vLLM; it may belong to another virtual environment."""
    arguments: str = ""
    """Additional command-line arguments of servers that the run starts."""
    gpu_memory: float = 0.0
    """Share of the learner's GPU for the server. 0 gives each server GPUs that the
    learner does not use; with policy.sleep or policy.transfer=ipc, 0 means 0.4."""

    def __post_init__(self) -> None:
        from agents.vllm.arguments import num_gpus, split_words

        super().__post_init__()
        if self.replicas < 1:
            raise ValueError(f"replicas ({self.replicas}) must be >= 1")
        if not 0 <= self.gpu_memory < 1:
            raise ValueError(f"gpu_memory ({self.gpu_memory}) must be at least 0 and below 1")
        if self.url:
            for name in ("arguments", "sleep", "gpu_memory"):
                if getattr(self, name):
                    raise ValueError(f"{name} is for servers that the run starts, not policy.url")
        num_gpus(split_words(self.arguments))

    @property
    def urls(self) -> list[str]:
        """URLs of servers that are already running. Empty if the run starts its own servers."""
        return [url.strip() for url in self.url.split(",") if url.strip()]

    @property
    def gpu_share(self) -> float:
        """Fraction of the learner's GPU for the server, or 0 if the servers have other GPUs."""
        if self.urls:
            return 0.0
        shares = self.sleep or self.transfer == "ipc"
        return self.gpu_memory or (_SHARE if shares else 0.0)

    def check(self, config: RunSettings, device: torch.device, lora: LoraConfig) -> None:
        """Reject settings that vLLM does not support on this machine.

        Raises:
            UsageError: a setting is not supported, or there are too few GPUs.
        """
        from rl.policies.devices import on_cluster, ranks_of

        super().check(config, device, lora)
        if on_cluster(config):
            self._check_cluster()
            return
        if device.type == "cuda" and not self.urls:
            self._gpus(device, getattr(config, "staleness", 0), ranks_of(config))
        if not self.urls:
            self._check_python()

    def _check_python(self) -> None:
        """Check that ``python`` has vLLM."""
        from agents.vllm.server_process import NOT_INSTALLED, has_vllm

        try:
            found = has_vllm(self.python)
        except OSError as error:
            raise UsageError(
                f"policy.python ({self.python}) must be a Python interpreter with vLLM, and cannot "
                f"be started: {error.strerror}"
            ) from error
        if not found:
            raise UsageError(
                f"policy=vllm-server needs vLLM: {NOT_INSTALLED.format(python=self.python)}"
            )

    def _check_cluster(self) -> None:
        """Reject settings of servers on the learner's GPU: a cluster gives them other GPUs."""
        if self.gpu_share or self.transfer != "files":
            raise UsageError("policy.sleep, gpu_memory and transfer need cluster=local: drop them")

    def gpus_of_servers(self, device_type: str) -> list[int]:
        """The number of GPUs of each server that the run starts; none with ``policy.url``."""
        from agents.vllm.arguments import num_gpus, split_words

        if self.urls:
            return []
        each = num_gpus(split_words(self.arguments)) if device_type == "cuda" else 0
        return [each] * self.replicas

    def _gpus(self, learner: torch.device, staleness: int = 0, ranks: int = 1) -> list[str]:
        """The GPUs of each server of this machine, as ``CUDA_VISIBLE_DEVICES`` names them.

        Raises:
            UsageError: there are too few GPUs.
        """
        from rl.policies.devices import Servers, gpus_or_remedy

        servers = Servers(self.replicas, self.gpus_of_servers("cuda")[0], self.gpu_share > 0, ranks)
        share = "gpu_memory=0.4, to share" if staleness else "sleep=true, to take turns on"
        transfer = "policy.transfer=ipc " if self.transfer == "nccl" else ""
        return gpus_or_remedy(learner, servers, f"{transfer}policy.{share} the learner's GPU")

    async def open(self, context: PolicyContext) -> VLLMServerPolicy:
        """Start the servers or connect to them, and load the learner's weights."""
        from agents.serving import ManagedServer
        from agents.vllm import VLLMClient, VLLMServerPolicy, VLLMServerProcess

        prober = await self.prober(context)
        server = partial(ManagedServer, prober, start_s=self.start_s, load_s=self.load_s)
        if self.urls:
            servers = [server(connect=VLLMClient.at(url)) for url in self.urls]
        else:
            context.report(f"starting vLLM, {self.replicas} server(s)")
            configs = self._configs(context, await base_model(context))
            servers = [
                server(runner=context.cluster.server(n, VLLMServerProcess(config)))
                for n, config in enumerate(configs)
            ]
        policy = VLLMServerPolicy(
            servers,
            context.cluster.publisher(self.publisher(context)),
            prober,
            context_window=context.context_window,
            timeouts=self.timeouts(context.config),
            max_num_seqs=context.config.sampling.slots,
            sleeps=self.sleep,
        )
        await self.start(policy, context)
        return policy

    def _configs(self, context: PolicyContext, model: str) -> list[ServerConfig]:
        """The settings with which each server is started."""
        import torch

        from agents.vllm import ServerConfig
        from agents.vllm.arguments import split_words
        from rl.policies.devices import VARIABLE, ranks_of

        shared = ServerConfig(
            **dataclasses.asdict(self.start_config(context, model)),
            python=self.python,
            arguments=split_words(self.arguments),
        )
        logs = context.logs
        files = [logs / f"vllm-{n}.log" if logs else None for n in range(self.replicas)]
        if shared.cpu or context.cluster.assigns_gpus:
            return [dataclasses.replace(shared, log=log) for log in files]
        device = torch.device(context.learner.facts.device)
        gpus = self._gpus(device, ranks=ranks_of(context.config))
        return [
            dataclasses.replace(shared, log=log, environment={VARIABLE: names})
            for log, names in zip(files, gpus, strict=True)
        ]


@dataclass(frozen=True, kw_only=True)
class VLLMInProcess(VLLM):
    """vLLM's engine in this process, on the learner's device."""

    gpu_memory: float = _SHARE
    """Share of the GPU's memory for vLLM; the learner has the rest."""
    arguments: str = ""
    """Additional arguments of vLLM's AsyncEngineArgs: "max_num_seqs=64 block_size=32"."""

    def __post_init__(self) -> None:
        from agents.vllm.arguments import parse_pairs

        super().__post_init__()
        if not 0 < self.gpu_memory < 1:
            raise ValueError(f"gpu_memory ({self.gpu_memory}) must be above 0 and below 1")
        parse_pairs(self.arguments)

    @property
    def gpu_share(self) -> float:
        """Fraction of the learner's GPU for vLLM."""
        return self.gpu_memory

    def check(self, config: RunSettings, device: torch.device, lora: LoraConfig) -> None:
        """Reject settings that the engine does not support on this machine.

        Raises:
            UsageError: a setting is not supported.
        """
        from agents.vllm.engine_process import NOT_INSTALLED

        super().check(config, device, lora)
        if importlib.util.find_spec("vllm") is None:
            raise UsageError(NOT_INSTALLED)
        if device.index:
            raise UsageError(
                f"device ({device}) must be cuda with policy=vllm-engine, which uses the first GPU "
                f"it sees: set CUDA_VISIBLE_DEVICES={device.index}"
            )

    async def open(self, context: PolicyContext) -> VLLMEnginePolicy:
        """Start the engine, and load the learner's weights."""
        from agents.vllm import EngineConfig, VLLMEnginePolicy, VLLMEngineProcess
        from agents.vllm.arguments import parse_pairs

        start = dataclasses.asdict(self.start_config(context, await base_model(context)))
        start["log"] = context.logs / "vllm-engine.log" if context.logs else None
        config = EngineConfig(**start, arguments=parse_pairs(self.arguments))
        policy = VLLMEnginePolicy(
            VLLMEngineProcess(config),
            self.publisher(context),
            await self.prober(context),
            context_window=context.context_window,
            timeouts=self.timeouts(context.config),
            start_s=self.start_s,
            load_s=self.load_s,
        )
        context.report("starting vLLM in this process")
        await self.start(policy, context)
        return policy
