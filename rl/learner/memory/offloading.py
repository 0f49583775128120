"""Offloads everything that only updates need, while a policy on the same device samples."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor, nn

from rl.learner.memory.host import HostBuffers, Key, bring_back
from rl.learner.optimizer import Optimizer
from rl.learner.scoring import copied
from rl.learner.updater import Updater


class Offloader:
    """Moves an updater's state to the host's memory and back.

    The state consists of the optimizers' moments and float32 copies, and of all models except the
    policy: a reference, a critic's own trunk, token reward models. The policy's weights stay on the
    learner's device, because the policy's copies are verified against them. Gradients exist only
    during an update. A reference that waits in the host's memory between its scores stays there.
    """

    def __init__(self, updater: Updater) -> None:
        self._updater = updater
        self._host = HostBuffers()

    def offload(self) -> int:
        """Move the state to the host's memory. Returns the number of bytes freed on the device."""
        moved = [optimizer.offload() for optimizer in self._optimizers()]
        return sum(moved) + self._host.take(self._weights())

    def onload(self) -> None:
        """Move the state back to the device of the policy's weights."""
        bring_back(self._weights().values(), self._updater.model.device)
        for optimizer in self._optimizers():
            optimizer.onload()

    def _optimizers(self) -> Iterator[Optimizer]:
        yield self._updater.optimizer
        if self._updater.token_rewards is not None:
            yield self._updater.token_rewards.optimizer

    def _weights(self) -> dict[Key, Tensor]:
        """The weights of all models except the policy."""
        rewards = self._updater.token_rewards
        models: dict[str, nn.Module | None] = {
            "reference": copied(self._updater.reference) if self._updater.waiting is None else None,
            "value_trunk": self._updater.model.value_trunk,
        }
        if rewards is not None:
            models |= {f"token_rewards.{i}": model for i, model in enumerate(rewards.models())}
        return {
            (name, i): parameter
            for name, model in models.items()
            if model is not None
            for i, parameter in enumerate(model.parameters())
        }
