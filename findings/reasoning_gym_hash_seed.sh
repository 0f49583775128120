#!/bin/bash
# reasoning-gym 0.1.25 (Python 3.11): create_dataset("ransom_note", seed=0)[i] is another question in
# each process, because the generator iterates over sets of strings, whose order depends on
# PYTHONHASHSEED. So are isomorphic_strings and polynomial_multiplication. One would expect that
# `seed` decides the data set, as it does for 98 of 104 data sets.
# Output seen: "ransom_note: 5 of 5 questions differ", "isomorphic_strings: 5 of 5 questions differ",
# "polynomial_multiplication: 5 of 5 questions differ", "leg_counting: 0 of 5 questions differ".
set -euo pipefail
home=$(mktemp -d)
trap 'rm -rf "$home"' EXIT
python3 -m venv "$home/venv"
"$home/venv/bin/pip" install -q reasoning-gym==0.1.25
cat > "$home/draw.py" <<'PYTHON'
import json
import sys

import reasoning_gym

names = ("ransom_note", "isomorphic_strings", "polynomial_multiplication", "leg_counting")
found = {
    name: [entry["question"] for entry in reasoning_gym.create_dataset(name, seed=0, size=5)]
    for name in names
}
json.dump(found, open(sys.argv[1], "w"))
PYTHON
for seed in 1 2; do
    PYTHONHASHSEED=$seed "$home/venv/bin/python" -W ignore "$home/draw.py" "$home/$seed.json"
done
"$home/venv/bin/python" - "$home" <<'PYTHON'
import json
import sys

one, other = (json.load(open(f"{sys.argv[1]}/{seed}.json")) for seed in (1, 2))
counts = {name: sum(a != b for a, b in zip(one[name], other[name])) for name in one}
for name, count in counts.items():
    print(f"{name}: {count} of 5 questions differ")
assert list(counts.values())[:3] != [0, 0, 0] and counts["leg_counting"] == 0
PYTHON
