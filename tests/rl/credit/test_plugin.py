"""Advantages and surrogates by name: what a plug-in must be, and how its options are changed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import pytest
import torch

from rl.credit.advantages import Gae, GroupOutcome
from rl.credit.algorithm import Algorithm
from rl.credit.algorithms import ALGORITHMS, find_algorithm, register_algorithm
from rl.credit.assignment import correction_weights
from rl.credit.plugin import (
    ADVANTAGES,
    CORRECTIONS,
    SURROGATES,
    Advantage,
    CorrectionRule,
    Credit,
    Surrogate,
    SurrogateLoss,
    register,
)
from rl.credit.surrogates import Clip, Gspo
from rl.errors import RunFailure
from rl.learner.settings import OptimizerConfig
from rl.learner.updater import Updater
from tools.registry import UnknownNameError

GRPO = ALGORITHMS["grpo"]


@register
@dataclass(frozen=True, kw_only=True)
class Unclipped(Surrogate):
    """-r A, times scale."""

    name = "test-unclipped"
    scale: float = 1.0
    """Weight of it all."""

    def loss(self, ratios):
        return SurrogateLoss(-self.scale * ratios.log_ratio().exp() * ratios.advantages)


def test_options_are_changed_by_the_keys_of_the_command_line():
    row = GRPO.changed({"surrogate.clip_high": 0.3, "kl.coef": 0.1, "epochs": 2})
    assert row.surrogate == Clip(clip_low=0.2, clip_high=0.3)
    assert (row.kl.coef, row.kl.estimator, row.epochs) == (0.1, "k3", 2)
    assert replace(row, surrogate=Clip(), kl=GRPO.kl, epochs=1) == GRPO


def test_a_named_plug_in_starts_with_its_own_defaults():
    row = GRPO.changed({"advantage.std": "none", "surrogate.clip_low": 0.5})
    row = row.changed({"surrogate": "gspo", "surrogate.clip_high": 1e-3})
    assert row.surrogate == Gspo(clip_low=3e-4, clip_high=1e-3)
    assert row.advantage == GroupOutcome(std="none")
    row = row.changed({"surrogate": Clip(), "advantage": "gae", "value.coef": 0.1})
    assert (row.advantage, row.uses_values) == (Gae(lam=1.0), True)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"surrogate": "gspoo"}, UnknownNameError, "surrogate 'gspoo'. Did you mean 'gspo'?"),
        ({"advantage": "gea"}, UnknownNameError, "advantage 'gea'. Did you mean 'gae'?"),
        (
            {"advantage.lam": 0.5},
            ValueError,
            "advantage=group-outcome has no option 'lam'. Known: baseline, std.",
        ),
        (
            {"surrogate": "gspo", "surrogate.clip_hi": 1},
            ValueError,
            "surrogate=gspo has no option 'clip_hi'. Did you mean 'clip_high'?",
        ),
        ({"kl.coeff": 1}, ValueError, "kl has no option 'coeff'. Did you mean 'coef'?"),
        ({"epoch": 1}, ValueError, "an algorithm has no option 'epoch'. Did you mean 'epochs'?"),
        ({"epochs.x": 1}, ValueError, "epochs has no option 'x'. Known: none."),
        ({"surrogate.clip_low": -1.0}, ValueError, "surrogate.clip_low (-1.0) must be >= 0"),
        ({"advantage": "vine", "advantage.rollouts": 0}, ValueError, "advantage.rollouts (0) must"),
        ({"advantage": 3}, ValueError, "advantage (3) must be of class Advantage"),
    ],
)
def test_a_wrong_change_names_the_known_options(changes, error, message):
    with pytest.raises(error, match=re.escape(message)):
        GRPO.changed(changes)


def test_a_registered_surrogate_trains_as_the_clip_does_where_nothing_is_clipped(
    make_model, groups
):
    config = OptimizerConfig(lr=1e-3, max_grad_norm=1e9)
    rows = [GRPO.changed({"surrogate": "test-unclipped"}), GRPO]
    weights = []
    for row in rows:
        model = make_model()
        Updater(model, row, config).update(groups)
        weights.append(model.state_dict())
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
    assert "test-unclipped" in SURROGATES.names()


def test_a_row_is_registered_under_a_name():
    row = GRPO.changed({"surrogate": "test-unclipped", "surrogate.scale": 2.0})
    register_algorithm("test-row", row)
    assert find_algorithm("test-row") is row and "test-row" not in ALGORITHMS
    with pytest.raises(ValueError, match="algorithm 'grpo' is registered already"):
        register_algorithm("grpo", row)
    with pytest.raises(TypeError, match=r"algorithm 'x' is 3: it must be a rl.credit.algorithm"):
        register_algorithm("x", 3)


def test_a_notebook_replaces_its_own_row_and_no_other():
    notebook = {"__name__": "__main__", "register": register_algorithm, "row": GRPO}
    cell = compile("register('test-cell', row)", "cell", "exec")
    exec(cell, notebook)
    changed = notebook["row"] = GRPO.changed({"surrogate.clip_high": 0.3})
    exec(cell, notebook)
    assert find_algorithm("test-cell") is changed
    with pytest.raises(ValueError, match="algorithm 'test-cell' is registered already"):
        register_algorithm("test-cell", ALGORITHMS["ppo"])
    with pytest.raises(ValueError, match="algorithm 'ppo' is registered already"):
        exec(compile("register('ppo', row)", "cell", "exec"), notebook)


@dataclass(frozen=True, kw_only=True)
class Valued(Advantage):
    """Rewards, with value targets if ``targets``."""

    name = "test-valued"
    needs_values = True
    targets: bool = True
    """Whether value targets are returned."""

    def credit(self, inputs):
        returns = inputs.batch.rewards[inputs.batch.episode_ids]
        return Credit(returns - inputs.values, returns if self.targets else None)


def test_an_advantage_with_values_must_return_value_targets():
    assert GRPO.changed({"advantage": Valued(), "value.coef": 0.1}).uses_values
    message = "algo.advantage=test-valued has needs_values=True but returned no value targets"
    with pytest.raises(ValueError, match=message):
        GRPO.changed({"advantage": Valued(targets=False), "value.coef": 0.1})


def test_an_advantage_with_values_that_fails_is_refused():
    @dataclass(frozen=True)
    class Broken(Valued):
        def credit(self, inputs):
            return inputs.missing

    with pytest.raises(ValueError, match=r"algo\.advantage=test-valued fails on two episodes"):
        GRPO.changed({"advantage": Broken(), "value.coef": 0.1})


@register
@dataclass(frozen=True, kw_only=True)
class Halves(CorrectionRule):
    """A half for each token whose ratio is at most ``high``, else 0."""

    name = "test-halves"

    def weights(self, ratios, low, high):
        return ratios.inside(0.5, ratios.rho, 0.0, high)


@register
@dataclass(frozen=True, kw_only=True)
class OneNumber(CorrectionRule):
    """One weight for all tokens, which is an error."""

    name = "test-one-number"

    def weights(self, ratios, low, high):
        return ratios.rho.sum(), ratios.rho.sum() > high


def test_a_registered_correction_weights_tokens():
    row = GRPO.changed({"correction.kind": "test-halves", "correction.high": 1.5})
    old = torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64).log()
    episodes = torch.tensor([0, 0, 1])
    weights, metrics = correction_weights(row, old, torch.zeros_like(old), episodes)
    assert weights.tolist() == [0.5, 0.0, 0.5]
    assert metrics["correction/bounded"] == pytest.approx(1 / 3)
    wrong = GRPO.changed({"correction.kind": "test-one-number"})
    with pytest.raises(RunFailure, match=r"algo.correction.kind=test-one-number gave weights of"):
        correction_weights(wrong, old, torch.zeros_like(old), episodes)


def _without_name():
    @dataclass(frozen=True)
    class Nameless(Unclipped):
        name = ""

    return Nameless


def _not_frozen():
    @dataclass
    class Loose(Surrogate):
        name = "test-loose"

        def loss(self, ratios):
            raise AssertionError

    return Loose


def _without_default():
    @dataclass(frozen=True)
    class Bare(Surrogate):
        name = "test-bare"
        weight: float

        def loss(self, ratios):
            raise AssertionError

    return Bare


def _with_taken_option():
    @dataclass(frozen=True, kw_only=True)
    class Taken(Unclipped):
        name = "test-taken"
        has_ratio: bool = True

    return Taken


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: 3, "3 must be a subclass of Advantage, Surrogate or CorrectionRule"),
        (lambda: Algorithm, "must be a subclass of Advantage, Surrogate or CorrectionRule"),
        (_without_name, "Nameless.name ('') must be lower-case letters, digits and -"),
        (_not_frozen, "Loose is no frozen dataclass: its fields are its options"),
        (_without_default, "Bare.weight has no default value"),
        (_with_taken_option, "Taken must not call an option 'has_ratio'"),
    ],
)
def test_invalid_plug_ins_are_refused(make, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        register(make())


def test_a_name_is_given_once():
    @dataclass(frozen=True)
    class Other(Unclipped):
        name = "clip"

    with pytest.raises(ValueError, match="surrogate 'clip' is registered already"):
        register(Other)


def test_a_loss_of_another_shape_is_refused(make_model, groups):
    @dataclass(frozen=True)
    class Sum(Unclipped):
        name = "test-sum"

        def loss(self, ratios):
            return SurrogateLoss(super().loss(ratios).loss.sum())

    row = GRPO.changed({"surrogate": Sum()})
    with pytest.raises(RunFailure, match=r"algo.surrogate=test-sum gave losses of shape \(\), exp"):
        Updater(make_model(), row, OptimizerConfig(lr=1e-3)).update(groups)


def test_every_plug_in_has_a_sentence_and_a_docstring_for_each_option():
    from tools.field_docs import field_docs

    kinds = (ADVANTAGES, Advantage), (SURROGATES, Surrogate), (CORRECTIONS, CorrectionRule)
    for plug_ins, base in kinds:
        for name in plug_ins.names():
            plugin = plug_ins.find(name)
            assert issubclass(plugin, base) and plugin.__doc__
            assert set(field_docs(plugin)) >= set(plugin.__dataclass_fields__)


def test_the_types_of_a_plugins_options_are_computed_once(monkeypatch):
    @dataclass(frozen=True, kw_only=True)
    class Halved(Surrogate):
        """A surrogate with an option."""

        factor: float = 0.5

        def loss(self, ratios):
            return SurrogateLoss(-ratios.advantages * self.factor)

    Halved()

    def again(kind):
        raise AssertionError(f"the types of {kind} are computed again")

    monkeypatch.setattr("typing.get_type_hints", again)
    assert Halved(factor=0.25).factor == 0.25
    with pytest.raises(ValueError, match="factor"):
        Halved(factor=float("nan"))
