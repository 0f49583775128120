"""Settings of low-rank adapters (LoRA)."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rl.settings.groups import at_least

ADAPTER_CONFIG = "adapter_config.json"
"""The file by which PEFT recognises the folder of an adapter."""


@dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """LoRA (Hu et al.

    2021): trains only low-rank matrices, which are added to the linear layers.
    """

    rank: int = 0
    """Rank of the matrices. With 0 there is no adapter, and all weights are trained."""
    alpha: int = 0
    """Numerator of the adapter's scale alpha / rank, as in PEFT; 0 for twice the rank."""
    targets: tuple[str, ...] = ()
    """Linear layers that get an adapter, by the last part of their names, as in q_proj,v_proj. If
    empty, all linear layers of the decoder; never the output head and the embedding."""
    base_bits: Literal[0, 4, 8] = 0
    """Bits of the frozen weights of the decoder's linear layers (QLoRA, Dettmers et al. 2023, arXiv
    2305.14314); 0 for the type of the model. Needs bitsandbytes: pip install
    'turnwise[quantized]'."""

    def __post_init__(self) -> None:
        at_least(0, self, "rank", "alpha")
        if self.rank == 0 and (self.alpha or self.targets):
            key, value = ("alpha", self.alpha) if self.alpha else ("targets", self.targets[0])
            raise ValueError(f"{key} ({value}) does nothing with rank=0: give rank=8, say")
        if (bits := self.base_bits) not in (0, 4, 8):
            raise ValueError(f"base_bits ({bits}) must be 0, 4 or 8")
        if bits and self.rank == 0:
            raise ValueError(
                f"base_bits ({bits}) must be 0 with rank=0: quantised weights cannot be trained, "
                "only an adapter on top: give rank=8, say"
            )
        if bits and importlib.util.find_spec("bitsandbytes") is None:
            raise ValueError(
                f"base_bits ({bits}) needs bitsandbytes: pip install 'turnwise[quantized]'"
            )

    @property
    def scale(self) -> int:
        """The value of ``alpha`` in effect: ``alpha`` itself or, if it is 0, twice the rank."""
        return self.alpha or 2 * self.rank


NO_LORA = LoraConfig()
"""No adapter: all weights are trained."""


def is_adapter(path: str) -> bool:
    """Whether a folder holds an adapter, which needs a base model elsewhere."""
    return (Path(path).expanduser() / ADAPTER_CONFIG).is_file()
