"""Knights and knaves: generation and scoring, compared with reasoning-gym.

    python -m benchmarks.environments.knights_knaves [people]

Rounds of both alternate in one process. They count puzzles generated per second, with their texts,
and answers scored per second (right answers, and wrong answers in the right format). The depth is
2, reasoning-gym's default. Then 10,000 of our puzzles are solved by trying every assignment. Prints
one JSON line; ratios are ours over theirs, the median of the rounds.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from itertools import product

import reasoning_gym

from envs.logic.knights.puzzle import KnightsTasks
from envs.logic.knights.reward import logic_rl_reward
from envs.logic.knights.scripted_policies import answer

ROUNDS, NUM_DRAWN, NUM_SCORED, NUM_PROVED = 9, 300, 2000, 10_000
DEPTH = 2


def rate(work: Callable[[], int]) -> float:
    start = time.perf_counter()
    return work() / (time.perf_counter() - start)


def holds(statement: tuple, roles: tuple[bool, ...]) -> bool:
    kind, *parts = statement
    if kind in ("knight", "knave"):
        return roles[parts[0]] == (kind == "knight")
    first, *rest = (holds(part, roles) for part in parts)
    return {
        "not": not first,
        "and": first and rest[:1] == [True],
        "or": first or rest[:1] == [True],
        "if": not first or rest[:1] == [True],
        "iff": rest[:1] == [first],
    }[kind]


def proved(people: int) -> int:
    """Count the puzzles that have exactly one solution, which is their recorded one."""
    tasks, count = KnightsTasks("train", 0, people, DEPTH), 0
    for index in range(NUM_PROVED):
        puzzle = tasks[index]
        found = [
            roles
            for roles in product((False, True), repeat=people)
            if all(
                holds(statement, roles) == knight
                for knight, statement in zip(roles, puzzle.statements, strict=True)
            )
        ]
        said = tuple(role == "knight" for role in puzzle.roles.values())
        count += found == [said]
    return count


def main() -> None:
    people = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    theirs = reasoning_gym.create_dataset(
        "knights_knaves", seed=0, size=10**9, n_people=people, depth_constraint=DEPTH
    )
    tasks = KnightsTasks("train", 0, people, DEPTH)
    puzzles, entries = [tasks[i] for i in range(100)], [theirs[i] for i in range(100)]
    responses = [
        (f"<think> </think> {answer(p.names, p.solution ^ (i % 2))}", p.roles)
        for i, p in enumerate(puzzles)
    ]
    # Every second answer is the next puzzle's, and wrong.
    answers = [(entries[(i + i % 2) % 100]["answer"], e) for i, e in enumerate(entries)]

    def draw_ours(start: int) -> int:
        return sum(bool(tasks[i].text()) for i in range(start, start + NUM_DRAWN))

    def draw_theirs(start: int) -> int:
        return sum(bool(theirs[i]["question"]) for i in range(start, start + NUM_DRAWN))

    def score_ours() -> int:
        for i in range(NUM_SCORED):
            logic_rl_reward(*responses[i % 100])
        return NUM_SCORED

    def score_theirs() -> int:
        for i in range(NUM_SCORED):
            theirs.score_answer(*answers[i % 100])
        return NUM_SCORED

    rates: dict[str, list[float]] = {"draw": [], "their_draw": [], "score": [], "their_score": []}
    for number in range(ROUNDS):
        start = number * NUM_DRAWN
        rates["draw"].append(rate(lambda start=start: draw_ours(start)))
        rates["their_draw"].append(rate(lambda start=start: draw_theirs(start)))
        rates["score"].append(rate(score_ours))
        rates["their_score"].append(rate(score_theirs))
    figures = {f"{name}_per_s": round(statistics.median(found)) for name, found in rates.items()}
    for name in ("draw", "score"):
        pairs = zip(rates[name], rates[f"their_{name}"], strict=True)
        figures[f"{name}_ratio"] = round(statistics.median(o / t for o, t in pairs), 2)
    figures |= {"proved": proved(people), "of": NUM_PROVED}
    print(json.dumps({"benchmark": "knights_knaves", "people": people} | figures))


if __name__ == "__main__":
    main()
