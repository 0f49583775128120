"""Train an agent that searches over several turns, then read the last step's episodes.

Run with: python examples/08_train_multi_turn_search.py (five minutes; with the word ``quick``
seconds)

The run's folder holds curve.png; docs/environments.md shows the curves of five seeds, which go from
0.19 to 0.91 on average.

Prints:
    success before ..., after ...
    observations are not trained: ... of ... tokens are the agent's own
    The person is ... Find the ... of the ...
    ...
    rewards {'answer': ..., 'format': ...}
"""

from __future__ import annotations

import sys
import tempfile

import rl
from rl.rollout.trajectory_files import read_trajectories

QUICK = rl.PRESETS["smoke"] if "quick" in sys.argv else {"steps": 40}


def main() -> None:
    out = f"{tempfile.mkdtemp()}/run"
    run = rl.fit(rl.TrainConfig(env={"name": "search-qa", "hops": "2"}, out=out, **QUICK))
    print(f"success before {run.before}, after {run.after}")
    newest = sorted((run.folder / "trajectories").glob("step-*.jsonl.gz"))[-1]
    episode = max(read_trajectories(newest), key=lambda episode: len(episode.turns))
    own = sum(sum(segment.loss_mask) for segment in episode.segments)
    total = sum(map(len, episode.segments))
    print(f"observations are not trained: {own} of {total} tokens are the agent's own")
    print(episode.observation)
    for turn in episode.turns:
        print(f"{turn.action}{turn.observation}")
    print(f"rewards {episode.rewards}")


if __name__ == "__main__":
    main()
