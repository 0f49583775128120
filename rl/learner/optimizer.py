"""AdamW with warm-up and decay, gradient clipping and float32 copies of narrower weights."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rl.learner.memory.host import HostBuffers, Key, bring_back
from rl.learner.memory.transfers import read
from rl.learner.ranks.world import SOLO, Keys, World, converted
from rl.learner.settings import OptimizerConfig

WEIGHT, COPY = "weight", "copy"
"""Names of weights and of float32 copies in a snapshot; all other names come from AdamW."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A copy of the weights and the optimizer's state, in the host's memory.

    The next snapshot of a GPU's weights overwrites this copy.
    """

    tensors: dict[Key, Tensor]
    numbers: dict[Key, int]
    """AdamW's step counts, where they are integers and not tensors."""
    num_steps: int


class Optimizer:
    """AdamW over ``parameters``, which change in place.

    A bfloat16 weight has 8 significant bits, so rounding would lose a step of 1e-6. Parameters
    narrower than float32 therefore have a float32 copy: the copy is stepped, then rounded into the
    parameter. For the same reason, :meth:`backward` sums the gradients of micro-batches in float32.

    Args:
        parameters: all trained parameters.
        config: the settings.
        critic: those of ``parameters`` that are trained at ``config.critic_lr``, or at
            ``config.lr`` if ``config.critic_lr`` is 0.
        world: the ranks among which the parameters are divided. Each steps its own part.

    Raises:
        ValueError: ``config.critic_lr`` is above 0, but there is no critic.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        config: OptimizerConfig,
        critic: Sequence[nn.Parameter] = (),
        world: World = SOLO,
    ) -> None:
        if config.critic_lr and not critic:
            raise ValueError(
                f"optimizer.critic_lr ({config.critic_lr:g}) must be left out: only rows with "
                f"values have a critic (algo=ppo, orz, turn-ppo, bilevel-ppo)"
            )
        self.config = config
        self.num_steps = 0
        self._world = world
        self._host = HostBuffers()
        self._parameters = list(parameters)
        self._stepped = [_full_precision(p) for p in self._parameters]
        apart = {id(p) for p in critic} if config.critic_lr else set()
        in_critic = [id(p) in apart for p in self._parameters]
        groups: list[dict[str, Any]] = []
        self._rates: list[float] = []
        """Learning rate of each parameter group after the warm-up."""
        for of_critic in (False, True) if apart else (False,):
            members = [
                p for p, mine in zip(self._stepped, in_critic, strict=True) if mine == of_critic
            ]
            for matrices in (True, False):
                chosen = [p for p in members if (p.ndim >= 2) == matrices]
                decay = config.weight_decay if matrices else 0.0
                groups.append({"params": chosen, "weight_decay": decay})
                self._rates.append(config.critic_lr if of_critic else config.lr)
        self._adamw = _adamw(groups, config)

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step, for all parameters except those of the critic."""
        return self.config.lr * self._schedule

    @property
    def _schedule(self) -> float:
        """The learning rate of the next step, as a share of the full rate."""
        config = self.config
        step = self.num_steps + 1
        warmed = min(1.0, step / config.warmup_steps) if config.warmup_steps else 1.0
        if not config.decay_steps:
            return warmed
        return warmed * max(0.0, 1 - (step - 1) / config.decay_steps)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of ``loss`` to the step's gradient.

        The gradient of a parameter narrower than float32 moves into the ``grad`` of its float32
        copy as soon as it is complete, so at most one narrow gradient is in memory. The result
        therefore does not depend on the number of micro-batches.
        """
        handles = [
            parameter.register_post_accumulate_grad_hook(partial(_move_gradient, stepped))
            for parameter, stepped in self._with_copies()
        ]
        try:
            # The ranks' gradients are averaged, and the step's gradient is their sum.
            torch.autograd.backward(loss * self._world.size if self._world.size > 1 else loss)
        finally:
            for handle in handles:
                handle.remove()

    def add_zero_gradient(self) -> None:
        """Set missing gradients to 0, so that the next step still decays the averages."""
        for stepped in self._stepped:
            if stepped.grad is None:
                stepped.grad = torch.zeros_like(stepped)

    def clip_gradients(self) -> Tensor:
        """Scale the gradient down to ``max_grad_norm``, and return its norm before scaling."""
        for parameter, stepped in self._with_copies():
            _move_gradient(stepped, parameter)
        return self._world.whole(nn.utils.clip_grad_norm_(self._stepped, self.config.max_grad_norm))

    @torch.no_grad()
    def step(self) -> None:
        """Make one optimizer step and drop the gradient."""
        for group, rate in zip(self._adamw.param_groups, self._rates, strict=True):
            group["lr"] = rate * self._schedule
        self._adamw.step()
        for parameter, stepped in self._with_copies():
            parameter.copy_(stepped)
        self.num_steps += 1
        self.zero_grad()

    @torch.no_grad()
    def take_weights(self) -> None:
        """Continue from the parameters' current values, which did not come from :meth:`step`."""
        for parameter, stepped in self._with_copies():
            stepped.copy_(parameter)

    def forget(self) -> None:
        """Drop the averages of past gradients. The warm-up continues."""
        self._adamw.state.clear()

    def zero_grad(self) -> None:
        """Drop the gradient."""
        for parameter in (*self._parameters, *self._stepped):
            parameter.grad = None

    def _with_copies(self) -> Iterator[tuple[nn.Parameter, nn.Parameter]]:
        """The parameters that have a float32 copy, each with its copy."""
        for parameter, stepped in zip(self._parameters, self._stepped, strict=True):
            if stepped is not parameter:
                yield parameter, stepped

    def weights_are_finite(self) -> bool:
        """Whether all weights are finite."""
        # Of a small parameter, some ranks have no part.
        own = [x for p in self._parameters if (x := self._world.own(p.detach())).numel()]
        # The maximum keeps nan, and only one number leaves the device.
        largest = nn.utils.get_total_norm(own, math.inf)
        return all(self._world.gather(math.isfinite(read([largest])[0].item())))

    def snapshot(self) -> Snapshot:
        """Copies of everything that a step changes, for :meth:`restore`."""
        weights: dict[Key, Tensor] = {
            (WEIGHT, i): self._world.own(parameter.detach())
            for i, parameter in enumerate(self._parameters)
        }
        numbers = {key: x for key, x in self._averages() if isinstance(x, int)}
        return Snapshot(self._host.copies(weights | self._state()), numbers, self.num_steps)

    @torch.no_grad()
    def restore(self, snapshot: Snapshot) -> None:
        """Undo every step since ``snapshot``, and drop the gradient."""
        self.forget()
        for (name, i), saved in snapshot.tensors.items():
            stepped = self._stepped[i]
            if name == WEIGHT:
                self._world.own(self._parameters[i]).copy_(saved)
            elif name == COPY:
                stepped.copy_(saved)
            else:
                average = saved.to(stepped.device, copy=True)
                self._adamw.state[stepped][name] = self._world.divided_as(stepped, average)
        for (name, i), number in snapshot.numbers.items():
            self._adamw.state[self._stepped[i]][name] = number
        self.num_steps = snapshot.num_steps
        self.zero_grad()

    def offload(self) -> int:
        """Move the float32 copies and the moments to the host's memory, until :meth:`onload`.

        Returns the number of bytes freed on the device.
        """
        return self._host.take(self._state())

    def onload(self) -> None:
        """Move the float32 copies and the moments back to the device of the weights."""
        for (_, i), tensor in self._state().items():
            bring_back([tensor], self._parameters[i].device)

    def _state(self) -> dict[Key, Tensor]:
        """AdamW's tensors and the float32 copies, by name and position of the parameter."""
        return {
            (COPY, i): stepped
            for i, (p, stepped) in enumerate(zip(self._parameters, self._stepped, strict=True))
            if stepped is not p
        } | {key: x for key, x in self._averages() if isinstance(x, Tensor)}

    def _averages(self) -> Iterator[tuple[Key, Tensor | int]]:
        """AdamW's state, by name and position of the parameter."""
        for i, stepped in enumerate(self._stepped):
            for name, value in self._adamw.state.get(stepped, {}).items():
                own = self._world.own(value) if isinstance(value, Tensor) else value
                yield (name, i), own

    def state_dict(self) -> dict[str, Any]:
        """AdamW's state, the number of steps, and the float32 copies by parameter position.

        Ranks keep their weights in float32, so their weights count as copies.
        """
        stepped = enumerate(zip(self._parameters, self._stepped, strict=True))
        ranks = self._world.size > 1
        return {
            "adamw": self._adamw.state_dict(),
            "num_steps": self.num_steps,
            "copies": {i: x.detach() for i, (p, x) in stepped if ranks or x is not p},
        }

    def places_of_copies(self) -> dict[int, Keys]:
        """For the id of each parameter, the keys of its float32 copy in :meth:`state_dict`."""
        return {id(p): ("copies", i) for i, p in enumerate(self._parameters)}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a state of :meth:`state_dict`, for the same parameters in the same order."""
        ordered = [p for group in self._adamw.param_groups for p in group["params"]]
        averages = {
            i: converted(values, partial(self._world.part, like=ordered[i]))
            for i, values in state["adamw"]["state"].items()
        }
        self._adamw.load_state_dict({**state["adamw"], "state": averages})
        self.num_steps = state["num_steps"]
        self.load_copies(state)

    @torch.no_grad()
    def load_copies(self, state: Mapping[str, Any]) -> None:
        """Restore the float32 weights of a state of :meth:`state_dict`."""
        for i, copy in state["copies"].items():
            self._stepped[i].copy_(self._world.part(copy, like=self._stepped[i]))


def _adamw(groups: list[dict[str, Any]], config: OptimizerConfig) -> torch.optim.Optimizer:
    if config.state_bits == 32:
        return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)
    from bitsandbytes.optim import AdamW8bit

    adamw: torch.optim.Optimizer = AdamW8bit(groups, lr=config.lr, betas=config.betas)
    return adamw


def _move_gradient(stepped: nn.Parameter, parameter: nn.Parameter) -> None:
    """Move the gradient of ``parameter`` into the gradient of ``stepped``, its float32 copy."""
    if parameter.grad is None:
        return
    if stepped.grad is None:
        stepped.grad = parameter.grad.to(stepped.dtype)
    else:
        stepped.grad += parameter.grad
    parameter.grad = None


def _full_precision(parameter: nn.Parameter) -> nn.Parameter:
    if parameter.dtype in (torch.float32, torch.float64):
        return parameter
    return nn.Parameter(parameter.detach().float())
