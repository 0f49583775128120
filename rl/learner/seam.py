"""The protocol between a run and its learner: versioned methods, facts and handles.

A run never holds the model. It opens a :class:`Learner` with a :class:`LearnerSpec`, reads its
:class:`ModelFacts`, and gives its weights to the policy as a :class:`WeightHandle`. Only the
learner knows where the model is: in this process, in another one, or on several GPUs.

Weights have versions. The initial weights are version 0, and an update makes version ``n + 1`` from
version ``n``. A caller that does not know whether a call arrived can repeat it: the learner
recognises the version and does nothing twice.

``learner=NAME`` selects a learner, where NAME is an entry point of the group ``turnwise.learners``;
see :mod:`rl.learner.registration`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rl.credit.algorithm import Algorithm
from rl.errors import RunFailure
from rl.learner.settings import DEFAULT_MEMORY, MemoryConfig, OptimizerConfig
from rl.settings.lora import LoraConfig

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from agents.segment import Segment
    from agents.torch_thread import TorchThread
    from rl.rollout.trajectory import TrajectoryGroup


class NonFiniteLoss(RunFailure):
    """Raised before an optimizer step if its loss or gradient is not finite.

    The weights are the same as before the update.
    """


class BrokenWeights(RunFailure):
    """Raised after a step with finite loss and gradient that made weights not finite."""


class LearnerLost(RunFailure):
    """Raised when a learner ended, or did not answer within its deadline."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Constant properties of the learner's model."""

    family: str
    """The architecture, by Hugging Face's ``model_type``, for example ``qwen3``."""
    context_window: int
    """Maximum number of tokens in one sequence."""
    vocab_size: int
    """Number of rows of the output head. All token ids are below it."""
    end_token_ids: tuple[int, ...]
    """The tokens that end a message, from the model's generation config. Empty if the config has
    none."""
    device: str
    """The device of the weights, for example ``cpu`` or ``cuda:0``."""
    dtype: str
    """The type of the weights, for example ``float32`` or ``bfloat16``."""
    num_parameters: int
    num_trained: int
    adapter: Mapping[str, Any] | None
    """The content of ``adapter_config.json``, or None if all weights are trained."""


@dataclass(frozen=True, slots=True)
class TrainingSpec:
    """Settings of the updates."""

    algorithm: Algorithm
    optimizer: OptimizerConfig
    temperature: float
    """Sampling temperature of the episodes."""
    micro_batch_tokens: int
    """Maximum number of tokens of one forward pass, including padding. Results do not depend on
    it."""
    memory: MemoryConfig = DEFAULT_MEMORY
    """What the learner keeps in memory. Results do not depend on it."""
    packing: bool = True
    """Whether rows are packed, with shared prefixes computed once. Results do not depend on it."""
    replay_routing: bool = False
    """Whether tokens use the experts with which the sampler computed them, in a mixture of
    experts."""


@dataclass(frozen=True, slots=True)
class LearnerSpec:
    """Everything needed to open a learner. It can be pickled, and used in another process."""

    model: str
    """A folder in the Hugging Face layout, or a hub id."""
    tokenizer: PreTrainedTokenizerBase
    """The tokenizer, which is saved beside the weights in every checkpoint."""
    device: str
    dtype: str
    lora: LoraConfig
    seed: int
    training: TrainingSpec | None
    """Settings of the updates, or None if the weights are never trained, only sampled from."""


@dataclass(frozen=True, slots=True)
class Host:
    """Resources of the run's process that a learner can use. A ``Host`` cannot be pickled."""

    thread: TorchThread
    """Thread that computes with torch on several cores, one job after the other."""
    on_progress: Callable[[], None]
    """Reports progress. Call it at least once for each micro-batch, from any thread, because the
    watchdog ends a run without progress."""


@dataclass(frozen=True, slots=True)
class Experience:
    """Input of one update."""

    groups: Sequence[TrajectoryGroup]
    ptx_data: Sequence[Segment] = ()
    """Texts to imitate in the same update, weighted by ``algo.ptx_coef``. Without groups, the
    update imitates them alone: its loss is their mean cross-entropy, in nats per token."""


@dataclass(frozen=True, slots=True)
class TokenRecord:
    """What an update computed about each token, with the weights before its first optimizer step.

    A column has one number for each token of all episodes of the experience, in the order of
    groups, episodes, segments and positions. NaN stands for a token that was not trained, and for a
    number that the update did not need.
    """

    advantages: NDArray[np.float32]
    logprobs: NDArray[np.float32]
    """The log-probability by the learner over the token's sampling support, as in the importance
    ratio."""
    entropies: NDArray[np.float32]
    """Entropy of the distribution that the token was sampled from, by the learner, in nats."""


class WeightHandle(Protocol):
    """One version of the weights, for a policy. The handle is valid until the next update."""

    @property
    def version(self) -> int:
        """The version of the weights."""
        ...

    async def tensors(self, *, complete: bool = False) -> Mapping[str, Tensor]:
        """The weights by name. The caller must not change them.

        Args:
            complete: whether to return the model's whole ``state_dict``. If False, the handle
                returns the weights that training changes, under the names of a checkpoint's file;
                with LoRA, these are the adapter's weights.
        """
        ...


class Learner(Protocol):
    """Owner of the model: trains it, scores with it, hands over its weights and saves it.

    A caller makes one call at a time, except that ``score`` is allowed at any time. Any call can
    raise :class:`LearnerLost`.
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
        """Make ``version`` of the weights from the version before it, and return the metrics.

        The update happens completely or not at all. A repeated call with the same version returns
        the same metrics and trains nothing.

        Raises:
            NonFiniteLoss: the loss is not finite; the weights are as before.
            BrokenWeights: the update made weights that are not finite. Load other weights.
            ValueError: ``version`` is neither the current version nor the next one, or the
                experience contradicts the algorithm.
        """
        ...

    async def score(
        self, token_ids: Sequence[int], temperature: float, supports: Sequence[Sequence[int]] = ()
    ) -> Sequence[float]:
        """The log-probability of each token, except the first, given the tokens before it.

        Args:
            token_ids: one sequence.
            temperature: divisor of the logits. 0 (greedy) is scored at 1.
            supports: for each of the last tokens, the token ids from which it was sampled, or
                nothing for the whole vocabulary. If there are any, the result may leave out the
                tokens before.
        """
        ...

    async def tolerance(self, seed: int) -> float:
        """Largest difference of a token's log-probability, in nats, that rounding explains.

        Equal weights give such differences in another process or kernel.

        Args:
            seed: seed of the tokens with which the learner measures its rounding.
        """
        ...

    async def weights(self, version: int) -> WeightHandle:
        """A handle of the weights with this version.

        Raises:
            ValueError: the learner has another version.
        """
        ...

    async def save(
        self, folder: Path, state: Mapping[str, Any] | None = None, *, resumable: bool = False
    ) -> None:
        """Write a checkpoint. It appears complete or not at all.

        Args:
            folder: the checkpoint; an existing one is replaced.
            state: plain values and tensors of the caller, which :meth:`load` returns, or None.
            resumable: whether to save the optimizer's state and the version as well.

        Raises:
            RunFailure: the checkpoint cannot be written; an existing one has not changed.
        """
        ...

    async def load(self, folder: Path, version: int | None = None) -> dict[str, Any]:
        """Continue from a checkpoint, and return the ``state`` with which it was saved.

        Args:
            folder: the checkpoint.
            version: if set, only the weights are loaded, and they get this version. If None, a
                resumable checkpoint is loaded with its own version and optimizer state.

        Raises:
            UsageError: the checkpoint's algorithm has other parts (value head, reference, token
                rewards).
            ValueError: the checkpoint cannot be read. Nothing has changed.
        """
        ...

    async def offload(self) -> None:
        """Free device memory that only updates need, for a policy on the same device."""
        ...

    async def onload(self) -> None:
        """Allocate the freed memory again, before the next update. A repeated call does nothing."""
        ...

    async def close(self) -> None:
        """Free all resources. A repeated call does nothing."""
        ...


@runtime_checkable
class RecordsTokens(Protocol):
    """Optional method of a learner, for the files in which a run records its tokens."""

    async def token_record(self, version: int) -> TokenRecord | None:
        """What the update that made ``version`` computed about each token.

        The record is kept until the next update, and a repeated call returns it again. None if this
        learner did not make the version by an update, or if the update had no token.
        """
        ...


@runtime_checkable
class SavesMeanwhile(Protocol):
    """Optional method of a learner that writes checkpoints while it makes the next updates."""

    async def start_saving(
        self, folder: Path, state: Mapping[str, Any] | None = None
    ) -> Awaitable[None]:
        """Begin a resumable checkpoint, with the learner's state at the time of the call.

        The checkpoint appears complete or not at all. The caller waits for one checkpoint before it
        begins the next.

        Args:
            folder: the checkpoint; an existing one is replaced.
            state: plain values and tensors of the caller, which ``load`` returns, or None.

        Returns:
            What is done when the checkpoint is written. It raises RunFailure if it cannot be
            written, and then an existing checkpoint has not changed.

        Raises:
            RunFailure: the checkpoint cannot be begun.
        """
        ...


OpenLearner = Callable[[LearnerSpec, Host], Awaitable[Learner]]
"""A plug-in's entry point: a function that opens a learner whose weights are version 0.

It raises ValueError if the model does not exist, cannot be trained or contradicts the spec.
"""
