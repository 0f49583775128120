"""Rewards and scores of texts: pure functions, and rubrics that name and sum them."""

from envs.rewards.registration import make_rubric, names, register
from envs.rewards.rubric import Gate, Reward, Rubric, Sequential, Transcript, WeightedSum

__all__ = [
    "Gate",
    "Reward",
    "Rubric",
    "Sequential",
    "Transcript",
    "WeightedSum",
    "make_rubric",
    "names",
    "register",
]

for _name in (
    *(
        "accuracy",
        "verdict",
        "think_answer",
        "tag_count",
        "one_think_end",
        "repetition",
        "language",
    ),
    *("research_format", "searcher_format", "search_r1_format"),
    *("em", "f1", "cover_em", "jaccard"),
):
    register("rubric", _name, f"envs.rewards.components:{_name}")
