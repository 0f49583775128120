"""What gold, empty, constant and sentence answers earn in each task of reasoning-gym.

    python -m benchmarks.environments.reasoning_gym_scores [--tasks 16] [--only NAME] [--all]

Prints a table in Markdown: the mean reward of the library's own answer; of no answer; of the best
of some constants, named; of the best sentence; of the library's answer and two more words; and the
share of tasks that the best constant or sentence solves without reading the question. Without
``--all``, only the rows where a constant or a sentence earns at least 0.1, the answer with more
words solves a task, or the library's own answer earns less than 1.
"""

from __future__ import annotations

import argparse
import time
from statistics import fmean

import envs
from envs.adapters.reasoning_gym_tasks import TASKS

CONSTANTS = (
    *("0", "1", "2", "-1", "0.5", "True", "False", "Yes", "No", "A", "x", "[]", "[[]]", "{}"),
    *("6+6+6+6", "0 0 0", "[0, 0, 0]", "No path exists", "infeasible", "IMPOSSIBLE"),
)
SENTENCES = ("I do not know the answer.", "Yes or no, true or false: the answer is 0, 1 or 42.")
MORE = "and more"
_SECONDS = 20.0
"""A task that takes longer plays fewer episodes."""

Scores = dict[str, list[tuple[float, float]]]


def scores_of(name: str, num_tasks: int) -> Scores:
    """Reward and ``solved`` of each answer, by its text; "gold" is the library's own."""
    env = envs.make(f"reasoning-gym/{name}", trust_answers=True)
    gold, began = env.gold_policy(), time.perf_counter()
    found: Scores = {}
    for task in range(num_tasks):
        if task and time.perf_counter() - began > _SECONDS:
            break
        question, _ = env.reset(seed=0, options={"task": task})
        answers = {text: f"<answer>{text}</answer>" for text in ("", *CONSTANTS, *SENTENCES)}
        own = gold(question)
        answers |= {"gold": own, MORE: own.replace("</answer>", f" {MORE}</answer>")}
        for text, action in answers.items():
            last = env.fork().step(action)
            found.setdefault(text, []).append((last.reward, last.info["scores"]["solved"]))
    return found


def row(name: str, found: Scores) -> tuple[str, bool]:
    """A row of the table, and whether it differs from 1, 0, 0, 0."""
    mean = {text: fmean(reward for reward, _ in pairs) for text, pairs in found.items()}
    constant, sentence = (max(texts, key=mean.__getitem__) for texts in (CONSTANTS, SENTENCES))
    solved = [fmean(s for _, s in found[text]) for text in (constant, sentence)]
    cells = [
        f"`{name}`",
        f"{mean['gold']:.2f}",
        f"{mean['']:.2f}",
        f"{mean[constant]:.2f}" + (f" (`{constant}`)" if mean[constant] >= 0.01 else ""),
        f"{mean[sentence]:.2f}",
        f"{mean[MORE]:.2f}",
        f"{max(solved):.2f}",
    ]
    differs = mean["gold"] < 1 or max(mean[constant], mean[sentence]) >= 0.1
    return f"| {' | '.join(cells)} |", differs or any(right for _, right in found[MORE])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tasks", type=int, default=16, help="tasks of each set")
    parser.add_argument("--only", default="", help="sets whose names begin with this")
    parser.add_argument("--all", action="store_true", help="print every row")
    options = parser.parse_args()
    print("| task | gold | empty | constant | sentence | gold and more | solved |")
    print("|---|---|---|---|---|---|---|")
    for name in TASKS:
        if name.startswith(options.only):
            line, differs = row(name, scores_of(name, options.tasks))
            if differs or options.all:
                print(line, flush=True)


if __name__ == "__main__":
    main()
