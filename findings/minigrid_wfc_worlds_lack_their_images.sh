#!/usr/bin/env bash
# minigrid 3.2.0 registers six worlds MiniGrid-WFC-*-v0. After `pip install 'minigrid[wfc]'` none of
# them can be started: the pattern images from which they are generated are not in the wheel.
# Seen with Python 3.11 on Linux:
#   MiniGrid-WFC-MazeSimple-v0 FileNotFoundError
#   ... the same for all six, and 0 pattern images in the installed package
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet 'minigrid[wfc]==3.2.0'
"$work/venv/bin/python" - <<'PY'
import pathlib
import sys

import gymnasium
import minigrid

levels = [name for name in gymnasium.registry if name.startswith("MiniGrid-WFC-")]
missing = 0
for level in levels:
    try:
        gymnasium.make(level).reset(seed=0)
        print(level, "starts")
    except FileNotFoundError as error:
        missing += 1
        print(level, type(error).__name__)
images = list(pathlib.Path(minigrid.__file__).parent.rglob("*.png"))
print(len(images), "pattern images in the installed package")
sys.exit((len(levels), missing, len(images)) != (6, 6, 0))
PY
