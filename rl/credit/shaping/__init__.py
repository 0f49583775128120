"""Shaped rewards: additions to the environment's rewards, from lengths, budgets and siblings."""

from envs.rewards.registration import register
from rl.credit.shaping.shaping import LocalModel, Member, Shaping, Weighted, make_shapings

__all__ = ["LocalModel", "Member", "Shaping", "Weighted", "make_shapings"]

for _name in ("kimi_length", "overlong", "l1_exact", "l1_max", "cosine"):
    register("shaping", _name, f"rl.credit.shaping.components:{_name}")
register("shaping", "judge", "rl.preferences.judge_shaping:judge")
for _name in ("reward_model", "process_model"):
    register("shaping", _name, f"rl.preferences.shaping:{_name}")
