"""Low-rank adapters: what is trained in the place of all weights."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rl.settings.groups import at_least

ADAPTER_CONFIG = "adapter_config.json"
"""Is in every adapter's folder, as PEFT writes it."""


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """LoRA (Hu et al. 2021): matrices of low rank beside the linear layers are all that learns."""

    rank: int = 0
    """Of the matrices; 0: all weights are trained, and there is no adapter."""
    alpha: int = 0
    """What they add is scaled by alpha / rank, as in PEFT; 0: twice the rank."""
    targets: tuple[str, ...] = ()
    """Linear layers that have some, by the last part of their names (q_proj,v_proj); empty: all
    of the decoder, neither the output head nor the embedding."""

    def __post_init__(self) -> None:
        at_least(0, self, "rank", "alpha")
        if self.rank == 0 and (self.alpha or self.targets):
            key, value = ("alpha", self.alpha) if self.alpha else ("targets", self.targets[0])
            raise ValueError(f"{key} ({value}) does nothing with rank=0: give rank=8, say")

    @property
    def scale(self) -> int:
        """The alpha in force."""
        return self.alpha or 2 * self.rank


NO_LORA = LoraConfig()
"""All weights are trained."""


def is_adapter(path: str) -> bool:
    """Whether an adapter is in the folder, which counts on a base model elsewhere."""
    return (Path(path).expanduser() / ADAPTER_CONFIG).is_file()
