"""The protocol between a run and its learner: versioned verbs, facts and handles.

A run never holds the model. It opens a :class:`Learner` with a :class:`LearnerSpec`, reads its
:class:`ModelFacts`, and gives its weights to the policy as a :class:`WeightHandle`. Only the
learner knows where the model is: in this process, in another one, or on several GPUs.

Weights have versions. The initial weights are version 0, and an update makes version ``n + 1`` from
version ``n``. A caller that does not know whether a call arrived can repeat it: the learner
recognises the version and does nothing twice.

``learner=NAME`` selects a learner, where NAME is an entry point of the group
``turnwise.learners``; see :mod:`rl.learner.registration`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rl.credit.algorithm import Algorithm
from rl.errors import RunFailure
from rl.learner.settings import DEFAULT_MEMORY, MemoryConfig, OptimizerConfig
from rl.settings.lora import LoraConfig

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from agents.segment import Segment
    from agents.torch_thread import TorchThread
    from rl.rollout.trajectory import TrajectoryGroup


class NonFiniteLoss(RunFailure):
    """Raised instead of an optimizer step whose loss or gradient is not finite.

    The weights are the same as before the update.
    """


class BrokenWeights(RunFailure):
    """Raised after a step with a finite loss and gradient that made weights not finite."""


class LearnerLost(RunFailure):
    """Raised when a learner ended or did not answer within its deadline."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Constant properties of the learner's model."""

    family: str
    """The architecture, as Hugging Face's ``model_type`` names it: ``qwen3``."""
    context_window: int
    """Maximum tokens of one sequence."""
    vocab_size: int
    """Rows of the output head; token ids are below it."""
    end_token_ids: tuple[int, ...]
    """The tokens that end a message, by the model's generation config; empty: it names none."""
    device: str
    """Where the weights are: ``cpu``, ``cuda:0``."""
    dtype: str
    """The type of the weights: ``float32``, ``bfloat16``."""
    num_parameters: int
    num_trained: int
    adapter: Mapping[str, Any] | None
    """The content of ``adapter_config.json``; None where all weights are trained."""


@dataclass(frozen=True, slots=True)
class TrainingSpec:
    """Settings of the updates."""

    algorithm: Algorithm
    optimizer: OptimizerConfig
    temperature: float
    """Episodes are sampled at it."""
    micro_batch_tokens: int
    """Maximum tokens, padding counted, of one forward pass. Results do not depend on it."""
    memory: MemoryConfig = DEFAULT_MEMORY
    """What the learner keeps in memory. Results do not depend on it."""
    packing: bool = True
    """Whether rows are packed, with shared prefixes computed once. Results do not depend on it."""


@dataclass(frozen=True, slots=True)
class LearnerSpec:
    """Everything needed to open a learner; it can be pickled and opened in another process."""

    model: str
    """A folder in the Hugging Face layout, or a hub id."""
    tokenizer: PreTrainedTokenizerBase
    """Saved beside the weights in every checkpoint."""
    device: str
    dtype: str
    lora: LoraConfig
    seed: int
    training: TrainingSpec | None
    """None: the weights are never trained, only sampled from."""


@dataclass(frozen=True, slots=True)
class Host:
    """Resources of the run's process for a learner; it cannot be pickled."""

    thread: TorchThread
    """Computes with torch on several cores, one job after the other."""
    on_progress: Callable[[], None]
    """Call it at least once for each micro-batch, from any thread; the watchdog ends a run without
    progress."""


@dataclass(frozen=True, slots=True)
class Experience:
    """Input of one update."""

    groups: Sequence[TrajectoryGroup]
    ptx_data: Sequence[Segment] = ()
    """Texts to imitate in the same update (``algo.ptx_coef``)."""


class WeightHandle(Protocol):
    """One version of the weights, for a policy. It is valid until the learner's next update."""

    @property
    def version(self) -> int:
        """The version of the weights."""
        ...

    async def tensors(self, *, complete: bool = False) -> Mapping[str, Tensor]:
        """The weights by name; the caller only reads them.

        Args:
            complete: the model's whole ``state_dict``. False: what training changes, under the
                names of a checkpoint's file; with LoRA the adapter alone.
        """
        ...


class Learner(Protocol):
    """Owner of the model: trains it, scores with it, hands over its weights and saves it.

    Calls are sequential, except ``score``, which may come at any time. Any call may raise
    :class:`LearnerLost`.
    """

    @property
    def facts(self) -> ModelFacts:
        """Properties of the model."""
        ...

    @property
    def version(self) -> int:
        """The version of the current weights."""
        ...

    async def update(self, experience: Experience, version: int) -> dict[str, float]:
        """Make ``version`` of the weights from the version before it; returns the metrics.

        The update happens completely or not at all. Repeated with the same version, the call
        returns the same metrics and trains nothing.

        Raises:
            NonFiniteLoss: the loss is not finite; the weights are as before.
            BrokenWeights: the update made weights that are not finite; load others.
            ValueError: ``version`` is neither the current version nor the next one, or the
                experience contradicts the algorithm.
        """
        ...

    async def score(
        self, token_ids: Sequence[int], temperature: float, supports: Sequence[Sequence[int]] = ()
    ) -> Sequence[float]:
        """The log-probability of each token but the first, given the tokens before it.

        Args:
            token_ids: one sequence.
            temperature: logits are divided by it; 0 (greedy) is scored at 1.
            supports: token ids that each of the last tokens was sampled from; empty: the whole
                vocabulary.
        """
        ...

    async def tolerance(self, seed: int) -> float:
        """Largest difference of a log-probability, in nats, that equal weights may show elsewhere.

        Args:
            seed: seed of the tokens that the learner measures its rounding with.
        """
        ...

    async def weights(self, version: int) -> WeightHandle:
        """The weights of ``version``.

        Raises:
            ValueError: the learner has another version.
        """
        ...

    async def save(
        self, folder: Path, state: Mapping[str, Any] | None = None, *, resumable: bool = False
    ) -> None:
        """Write a checkpoint, which appears complete or not at all.

        Args:
            folder: the checkpoint; an existing one is replaced.
            state: plain values and tensors of the caller, which :meth:`load` returns; None: none.
            resumable: whether to save the optimizer's state and the version too.

        Raises:
            RunFailure: the checkpoint cannot be written; an existing one stays.
        """
        ...

    async def load(self, folder: Path, version: int | None = None) -> dict[str, Any]:
        """Continue from a checkpoint; returns the ``state`` that it was saved with.

        Args:
            folder: the checkpoint.
            version: loads only the weights, as this version. None: loads a resumable checkpoint
                with its own version and optimizer state.

        Raises:
            UsageError: the checkpoint belongs to an algorithm with other parts.
            ValueError: the checkpoint cannot be read. Nothing has changed.
        """
        ...

    async def offload(self) -> None:
        """Free device memory that only updates need, for a policy on the same device."""
        ...

    async def onload(self) -> None:
        """Allocate the memory again, before the next update. Repeating the call does nothing."""
        ...

    async def close(self) -> None:
        """Free everything. Repeating the call does nothing."""
        ...


OpenLearner = Callable[[LearnerSpec, Host], Awaitable[Learner]]
"""A plug-in's entry point: opens a learner whose weights are version 0.

It raises ValueError if the model does not exist, cannot be trained or contradicts the spec.
"""
