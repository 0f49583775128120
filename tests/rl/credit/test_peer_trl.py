"""The same tensors through TRL's losses and ours, where TRL is installed.

TRL's loss is a method of its trainer. It is called here as it is, on a stand-in that has its
settings and hands it the log-probabilities which a model would have given.
"""

from collections import defaultdict
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from rl.credit.advantages.math import group_advantages
from rl.credit.algorithm import Algorithm

trl = pytest.importorskip("trl")
trainer = pytest.importorskip("trl.trainer.grpo_trainer").GRPOTrainer

BOUNDS = {"surrogate.clip_low": 0.2, "surrogate.clip_high": 0.28}
ROW = Algorithm(max_tokens=17).changed(BOUNDS)
MEAN = replace(ROW, aggregation="seq-mean-token-mean")
TOKENS = replace(ROW, aggregation="token-mean")


class OneProcess:
    num_processes = 1

    def reduce(self, x, reduction):
        return x

    def gather(self, x):
        return x


def their_loss(b, loss_type, row, *, epsilon_high=0.28, level="token", drop=None):
    """TRL's loss of log-probabilities."""

    def loss_of(logprobs):
        stand_in = SimpleNamespace(
            _get_per_token_logps_and_entropies=lambda *_, **__: (logprobs, 0 * logprobs, None),
            get_off_policy_mask=trainer.get_off_policy_mask,
            aux_loss_enabled=False,
            top_entropy_quantile=1.0,
            off_policy_mask_threshold=drop,
            importance_sampling_level=level,
            beta=row.kl.coef,
            loss_type=loss_type,
            epsilon_low=0.2,
            epsilon_high=epsilon_high,
            max_completion_length=17,
            use_vllm=False,
            vllm_importance_sampling_correction=False,
            _entropy_bonus_enabled=False,
            current_gradient_accumulation_steps=1,
            accelerator=OneProcess(),
            model=SimpleNamespace(training=True),
            _metrics=defaultdict(lambda: defaultdict(list)),
            args=SimpleNamespace(
                use_bias_correction_kl=row.kl.ratio,
                delta=None,
                steps_per_generation=1,
                sapo_temperature_pos=1.0,
                sapo_temperature_neg=1.05,
            ),
        )
        ids = torch.zeros(b.mask.shape, dtype=torch.long)
        inputs = {
            "prompt_ids": ids[:, :1],
            "prompt_mask": ids[:, :1],
            "completion_ids": ids,
            # Padding is masked, and so is what a tool said.
            "completion_mask": torch.ones_like(b.mask),
            "tool_mask": b.mask,
            "advantages": b.advantages[:, 0],
            "old_per_token_logps": b.old,
            "ref_per_token_logps": b.ref,
            "num_items_in_batch": b.mask.sum(),
        }
        return trainer._compute_loss(stand_in, None, inputs)

    return loss_of


@pytest.mark.parametrize(
    ("loss_type", "row", "choices"),
    [
        ("grpo", MEAN, {}),
        ("grpo", MEAN.changed({"surrogate": "gspo", **BOUNDS}), {"level": "sequence"}),
        ("grpo", MEAN.changed({"kl.coef": 0.3}), {}),
        ("grpo", MEAN.changed({"kl.coef": 0.3, "kl.ratio": True}), {}),
        ("grpo", MEAN.changed({"correction.drop_divergence": 0.01}), {"drop": 0.01}),
        ("bnpo", TOKENS, {}),
        ("dapo", TOKENS, {}),
        ("dr_grpo", replace(ROW, aggregation="seq-mean-token-sum-norm"), {}),
        ("sapo", MEAN.changed({"surrogate": "sapo"}), {}),
        # Its epsilon_high is the bound itself, ours is counted from 1.
        (
            "cispo",
            TOKENS.changed(
                {"surrogate": "cispo", "surrogate.clip_low": 1.0, "surrogate.clip_high": 0.5}
            ),
            {"epsilon_high": 1.5},
        ),
    ],
    ids=["grpo", "gspo", "k3", "k3-ratio", "drop", "bnpo", "dapo", "dr_grpo", "sapo", "cispo"],
)
def test_losses(peer_batch, loss_type, row, choices):
    theirs = peer_batch.theirs(their_loss(peer_batch, loss_type, row, **choices))
    for got, expected in zip(peer_batch.ours(row), theirs, strict=True):
        torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)


def test_the_default_dual_clip_depends_on_old_logprobs(peer_batch):
    """With epsilon_high as for the clip, TRL's weights of cispo are at most 0.28."""
    row = TOKENS.changed(
        {"surrogate": "cispo", "surrogate.clip_low": 1.0, "surrogate.clip_high": 0.28}
    )
    _, theirs = peer_batch.theirs(their_loss(peer_batch, "cispo", row))
    _, ours = peer_batch.ours(row)
    bounded = peer_batch.advantages.abs() * 0.28 / peer_batch.mask.sum()
    assert (theirs.abs() <= bounded + 1e-12).all() and (ours.abs() > 2 * bounded).any()


def test_deviation_of_a_group():
    """Its deviation is over n - 1, as ours is by default; it adds 1e-4 to it, we 1e-6."""
    rewards = torch.tensor([1.0, 0.0, 0.25, 0.9], dtype=torch.float64)
    std = trl.trainer.utils.nanstd(rewards)
    centred = rewards - rewards.mean()
    ours = group_advantages(rewards, torch.zeros(4, dtype=torch.long)).advantages
    torch.testing.assert_close(centred / (std + 1e-6), ours, atol=1e-6, rtol=0)
