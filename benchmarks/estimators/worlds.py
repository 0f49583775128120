"""Worlds and policies that ``bias_and_variance`` measures, and their true gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.estimators.tabular import Setting, World, drawn

OFF_POLICY = 0.4
"""Standard deviation of what the sampler's logits differ by."""


def bandit() -> World:
    """One turn of one token: two tasks with other wages."""
    return World(
        {
            "poor": {"a": (None, 1.0), "b": (None, 0.0), "c": (None, 0.0)},
            "rich": {"a": (None, 0.6), "b": (None, 1.0), "c": (None, 0.2)},
        },
        ["poor", "rich"],
    )


def delayed(clock: bool = True, num_turns: int = 4) -> World:
    """A walk between two states that is paid at its end, from either.

    Args:
        clock: whether observations contain the number of the turn.
        num_turns: the most.
    """
    mark = " in turn " if clock else "@"
    states: dict[str, dict[str, tuple[str | None, float]]] = {}
    for turn in range(1, num_turns):
        good, bad = f"good{mark}{turn + 1}", f"bad{mark}{turn + 1}"
        states[f"good{mark}{turn}"] = {"a": (good, 0.0), "ba": (bad, 0.0), "bb": (None, 0.4)}
        states[f"bad{mark}{turn}"] = {"a": (bad, 0.0), "ba": (good, 0.0), "bb": (None, 0.0)}
    states[f"good{mark}{num_turns}"] = {"a": (None, 1.0), "ba": (None, 0.6), "bb": (None, 0.0)}
    states[f"bad{mark}{num_turns}"] = {"a": (None, 0.0), "ba": (None, 0.3), "bb": (None, 0.0)}
    return World(states, [f"good{mark}1", f"bad{mark}1"])


def decided() -> World:
    """The first of five turns decides almost all of what the last one pays."""
    states: dict[str, dict[str, tuple[str | None, float]]] = {}
    for start, chance in (("first", "won"), ("second", "lost")):
        other = {"won": "lost", "lost": "won"}[chance]
        paths: dict[str, tuple[str | None, float]] = {"a": (f"{chance} 2", 0.0)}
        states[start] = paths | {"ba": (f"{other} 2", 0.0), "bb": ("lost 2", 0.0)}
    for turn in range(2, 5):
        for state in ("won", "lost"):
            onward = (f"{state} {turn + 1}", 0.0)
            states[f"{state} {turn}"] = {"a": onward, "ba": onward, "bb": onward}
    states["won 5"] = {"a": (None, 1.0), "ba": (None, 0.9), "bb": (None, 0.8)}
    states["lost 5"] = {"a": (None, 0.0), "ba": (None, 0.1), "bb": (None, 0.0)}
    return World(states, ["first", "second"])


def free(world: World) -> World:
    """The same without rewards."""
    states = {
        state: {action: (then, 0.0) for action, (then, _) in actions.items()}
        for state, actions in world.states.items()
    }
    return World(states, world.starts)


def settings() -> dict[str, Setting]:
    """Settings in which estimators are measured. All settings of a world have the same policy."""
    worlds = {"bandit": bandit(), "delayed": delayed(), "decided": decided()}
    made = {name: Setting.on_policy(world, 1) for name, world in worlds.items()}
    for name, setting in list(made.items()):
        world = setting.world
        setting.reference = setting.logits
        setting.scores = beliefs(setting)
        moved = setting.logits + drawn(world, 2, OFF_POLICY)
        made[f"{name}, off-policy"] = setting.sampled_by(moved)
    clockless = delayed(clock=False)
    made["delayed, no clock"] = Setting(clockless, made["delayed"].logits, made["delayed"].logits)
    world = free(made["delayed"].world)
    reference = made["delayed"].logits + drawn(world, 3, 0.5)
    made["divergence"] = Setting(
        world, made["delayed"].logits, made["delayed"].logits, reference, None
    )
    return made


def beliefs(setting: Setting) -> Tensor:
    """Scores of a token reward model that is fully trained. ``[C, V]``.

    The log-odds of an outcome above one half once a token is sampled, from -3 to 3.
    """
    world = setting.world
    seen, right = torch.zeros_like(setting.logits), torch.zeros_like(setting.logits)
    for episode, probability in zip(world.episodes, setting.probabilities, strict=True):
        places = (list(episode.contexts), list(episode.letters))
        seen[places] += probability
        right[places] += probability * (episode.reward > 0.5)
    return torch.logit(right / seen).clamp(-3, 3)


def truth(name: str, setting: Setting) -> Tensor:
    """The gradient that estimators are to have: of the return, or minus the divergence's."""
    if name != "divergence":
        return setting.world.gradient(setting.logits)
    assert setting.reference is not None
    at = setting.logits.clone().requires_grad_()
    apart = setting.world.logprobs(at) - setting.world.logprobs(setting.reference)
    (whole,) = torch.autograd.grad(-setting.world.expectation(at, apart), at)
    return whole
