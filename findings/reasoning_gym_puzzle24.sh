#!/bin/bash
# reasoning-gym 0.1.25: the scorer of puzzle24 ("Make 24 using 8, 5, 10, 6. You can only use each
# number once.") gives the full score to 6+6+6+6 whatever the four numbers are: it checks only that
# there are four numbers of the configured range and that the value is 24. One would expect that it
# compares the numbers with those of the question, which the entry's metadata holds.
# Output seen: "6+6+6+6 earns 1.0 in 20 of 20 puzzles, 0 of which are made of four sixes".
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install -q reasoning-gym==0.1.25
"$home/venv/bin/python" -W ignore - <<'PYTHON'
import reasoning_gym

data = reasoning_gym.create_dataset("puzzle24", seed=0, size=20)
full = sum(data.score_answer("6+6+6+6", entry) == 1.0 for entry in data)
sixes = sum(entry["metadata"]["numbers"] == [6, 6, 6, 6] for entry in data)
print(f"6+6+6+6 earns 1.0 in {full} of 20 puzzles, {sixes} of which are made of four sixes")
assert (full, sixes) == (20, 0)
PYTHON
