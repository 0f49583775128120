"""Advantages, surrogates and corrections as plug-ins: their base classes and registration.

A plug-in is a frozen dataclass with a ``name``. Its fields are its options, its class variables
declare its requirements, and one method does the computation. :func:`register` registers it in this
process; a package declares it in the entry-point group ``turnwise.advantages``,
``turnwise.surrogates`` or ``turnwise.corrections``.
"""

from __future__ import annotations

import dataclasses
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from rl.credit.options import Aggregation, TokenRewardsKind, check_fields
from rl.credit.ratios import Ratios, SamplerRatios
from rl.credit.ratios import SurrogateLoss as SurrogateLoss
from rl.settings.parsing.choice import Choice
from tools.registry import PluginImportError, Registry

if TYPE_CHECKING:
    from torch import Tensor

    from rl.credit.advantages.inputs import CreditInputs

_NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@dataclass(frozen=True, slots=True)
class Credit:
    """The advantages of an update's N sampled tokens, all float64 on the CPU."""

    advantages: Tensor
    """``[N]``, the advantage of each token."""
    returns: Tensor | None = None
    """``[N]``, targets of the values, or None without values."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the step, by name."""


class PlugIn:
    """Base class of advantages, surrogates and corrections."""

    name: ClassVar[str] = ""
    """Name on the command line, in the tables, and of the entry point."""

    def __post_init__(self) -> None:
        check_fields(self)


class Advantage(PlugIn, ABC):
    """Base class of advantages: how much better than expected each sampled token was."""

    needs_values: ClassVar[bool] = False
    """Whether ``credit`` reads values. If so, the learner trains a value head (``value.coef``)."""
    token_rewards: ClassVar[tuple[TokenRewardsKind, ...]] = ("none",)
    """Supported values of ``token_rewards.kind``."""
    over_batch: ClassVar[bool] = False
    """Whether an episode's advantage depends on episodes of other groups."""

    needs_groups: ClassVar[bool] = False
    """Whether an episode without other members of its group has no advantage."""

    @property
    def needs_nonnegative_rewards(self) -> bool:
        """Whether every return must be 0 or more."""
        return False

    @property
    def turn_rollouts(self) -> int:
        """Number of continuations played from the start of each turn to estimate its value."""
        return 0

    @property
    def turn_discount(self) -> float:
        """Discount per turn in the continuations."""
        return 1.0

    @abstractmethod
    def credit(self, inputs: CreditInputs) -> Credit:
        """Compute the advantage of each token of an update, before whitening."""


class Surrogate(PlugIn, ABC):
    """Base class of surrogates: the policy's loss, from pi / pi_old and the advantage."""

    by_sequence: ClassVar[bool] = False
    """Whether a token's loss depends on the other tokens of its sequence. If so, micro-batches
    hold whole sequences."""
    gradient_at_zero: ClassVar[bool] = False
    """Whether a token with advantage 0 has a gradient. If not, the learner skips episodes whose
    advantages are all 0."""
    has_ratio: ClassVar[bool] = True
    """Whether the loss depends on pi / pi_old wherever the advantage is not 0, and so corrects for
    stale tokens. If not, ``old_logprobs=sampling`` is not allowed."""
    aggregation: ClassVar[Aggregation | None] = None
    """The only valid aggregation, or None if any is valid."""

    @abstractmethod
    def loss(self, ratios: Ratios) -> SurrogateLoss:
        """Compute the loss of each token of a micro-batch."""


class CorrectionRule(PlugIn, ABC):
    """Base class of corrections: importance weights for the mismatch of sampler and learner.

    A correction has no options. Its bounds are the settings ``correction.low`` and
    ``correction.high``.
    """

    @abstractmethod
    def weights(self, ratios: SamplerRatios, low: float, high: float) -> tuple[Tensor, Tensor]:
        """Weight of each token's surrogate, and whether a bound changed it: ``[N]`` each."""


P = TypeVar("P", bound=PlugIn)


class PlugIns(Generic[P]):
    """Registry of the plug-ins of one kind.

    Args:
        kind: "advantage", "surrogate" or "correction".
        base: base class of the plug-ins.
    """

    def __init__(self, kind: str, base: type[P]) -> None:
        self.kind, self.base = kind, base
        self._registry = Registry(kind, f"turnwise.{kind}s", _NAME)

    def add(self, plugin: type[P]) -> None:
        """Register a plug-in in this process, by its ``name``.

        Raises:
            TypeError: the class is not a valid plug-in of this kind.
            ValueError: another plug-in has the name.
        """
        self._check(plugin)
        self._registry.register(plugin.name, plugin)

    def names(self) -> list[str]:
        """Names of all plug-ins of this kind, sorted."""
        return self._registry.names()

    def find(self, name: str) -> type[P]:
        """The plug-in with this name.

        Raises:
            UnknownNameError: no plug-in has the name.
            PluginImportError: the plug-in cannot be imported, or is not valid.
        """
        found = self._registry.get(name)
        try:
            self._check(found)
            if found.name != name:
                raise TypeError(f"its name is {found.name!r}")
        except TypeError as error:
            raise PluginImportError(f"{self.kind} {name!r}: {error}") from error
        return found  # type: ignore[no-any-return]

    def make(self, name: str) -> P:
        """An instance of the plug-in with this name, with default options.

        Raises:
            UnknownNameError: no plug-in has the name.
            PluginImportError: the plug-in cannot be imported, or is not valid.
        """
        return self.find(name)()

    def choice(self, default: str) -> Choice:
        """The command-line setting that selects a plug-in of this kind by name."""

        def resolve(name: str) -> tuple[type[P], Mapping[str, Any], Any]:
            plugin = self.find(name)
            return plugin, {}, lambda values: plugin(**values)

        return Choice(resolve, default=default, names=self.names)

    def _check(self, plugin: Any) -> None:
        if not (isinstance(plugin, type) and issubclass(plugin, self.base)):
            raise TypeError(f"{plugin!r} is no subclass of rl.credit.plugin.{self.base.__name__}")
        parameters = getattr(plugin, "__dataclass_params__", None)
        if parameters is None or not parameters.frozen:
            raise TypeError(f"{plugin.__name__} is no frozen dataclass: its fields are its options")
        if not _NAME.fullmatch(plugin.name):
            raise TypeError(
                f"{plugin.__name__}.name ({plugin.name!r}) must be lower-case letters, digits and -"
            )
        for option in fields(cast(Any, plugin)):
            if hasattr(self.base, option.name):
                raise TypeError(f"{plugin.__name__} must not call an option {option.name!r}")
            if option.default is dataclasses.MISSING:
                raise TypeError(f"{plugin.__name__}.{option.name} has no default value")


ADVANTAGES: PlugIns[Advantage] = PlugIns("advantage", Advantage)  # type: ignore[type-abstract]
SURROGATES: PlugIns[Surrogate] = PlugIns("surrogate", Surrogate)  # type: ignore[type-abstract]
CORRECTIONS: PlugIns[CorrectionRule] = PlugIns("correction", CorrectionRule)  # type: ignore[type-abstract]

Kind = TypeVar("Kind", bound=type[PlugIn])


def register(plugin: Kind) -> Kind:
    """Register an advantage, a surrogate or a correction in this process. Also a class decorator.

    Raises:
        TypeError: the class is none of these, is not a frozen dataclass, or has no name.
        ValueError: another plug-in has the name.
    """
    kinds: tuple[PlugIns[Any], ...] = (ADVANTAGES, SURROGATES, CORRECTIONS)
    for plug_ins in kinds:
        if isinstance(plugin, type) and issubclass(plugin, plug_ins.base):
            plug_ins.add(plugin)
            return plugin
    raise TypeError(f"{plugin!r} must be a subclass of Advantage, Surrogate or CorrectionRule")
