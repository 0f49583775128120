"""Ten small tasks in Harbor's format, which need bash and a few programs only."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_TOML = """schema_version = "1.3"

[agent]
timeout_sec = 60.0

[verifier]
timeout_sec = 60.0

[environment]
network_mode = "no-network"
build_timeout_sec = 120.0
cpus = 1
memory_mb = 256
"""
_TEST = """#!/bin/bash
if {condition}; then
  echo 1 > /logs/verifier/reward.txt
else
  echo 0 > /logs/verifier/reward.txt
fi
"""


@dataclass(frozen=True)
class SmallTask:
    """A task: its files, its solution and the condition under which it is solved."""

    instruction: str
    files: dict[str, str]
    solution: str
    condition: str


TASKS = {
    "add-header": SmallTask(
        "Put the line `name,age` in front of the file people.csv.",
        {"people.csv": "Ada,36\nAlan,41\n"},
        "{ echo name,age; cat people.csv; } > new && mv new people.csv",
        '[ "$(cat people.csv)" = "$(cat /tests/expected.txt)" ]',
    ),
    "count-lines": SmallTask(
        "Write the number of lines of words.txt to count.txt.",
        {"words.txt": "one\ntwo\nthree\nfour\n"},
        "grep -c '' words.txt > count.txt",
        '[ "$(cat count.txt 2>/dev/null)" = 4 ]',
    ),
    "fix-script": SmallTask(
        "greet.sh must print `hello NAME` for its argument NAME. Mend it.",
        {"greet.sh": "#!/bin/bash\necho hello $NAME\n"},
        "printf '#!/bin/bash\\necho \"hello $1\"\\n' > greet.sh",
        '[ "$(bash greet.sh Ada)" = "hello Ada" ]',
    ),
    "keep-matches": SmallTask(
        "Write the lines of log.txt that contain ERROR to errors.txt.",
        {"log.txt": "INFO a\nERROR b\nINFO c\nERROR d\n"},
        "grep ERROR log.txt > errors.txt",
        '[ "$(cat errors.txt 2>/dev/null)" = "$(printf \'ERROR b\\nERROR d\')" ]',
    ),
    "make-folders": SmallTask(
        "Make the folders a/b/c and a/d.",
        {"note.txt": "no folder is here\n"},
        "mkdir -p a/b/c a/d",
        "[ -d a/b/c ] && [ -d a/d ]",
    ),
    "move-files": SmallTask(
        "Move every file whose name ends in .log to the folder logs.",
        {"one.log": "1\n", "two.log": "2\n", "keep.txt": "3\n"},
        "mkdir logs && mv *.log logs",
        "[ -f logs/one.log ] && [ -f logs/two.log ] && [ -f keep.txt ] && [ ! -e one.log ]",
    ),
    "remove-copy": SmallTask(
        "Two of the files have the same content. Remove the one with the longer name.",
        {"a.txt": "same\n", "a-copy.txt": "same\n", "b.txt": "other\n"},
        "rm a-copy.txt",
        "[ -f a.txt ] && [ -f b.txt ] && [ ! -e a-copy.txt ]",
    ),
    "replace-word": SmallTask(
        "Replace each `colour` in text.txt by `color`.",
        {"text.txt": "a colour\nno other colour\n"},
        "sed -i s/colour/color/g text.txt",
        '[ "$(cat text.txt)" = "$(printf \'a color\\nno other color\')" ]',
    ),
    "run-program": SmallTask(
        "Run bin/answer.sh and write what it prints to answer.txt.",
        {"bin/answer.sh": "#!/bin/bash\necho $((6 * 7))\n"},
        "bin/answer.sh > answer.txt",
        '[ "$(cat answer.txt 2>/dev/null)" = 42 ]',
    ),
    "sum-numbers": SmallTask(
        "Write the sum of the numbers in numbers.txt to sum.txt.",
        {"numbers.txt": "3\n14\n25\n"},
        "sum=0; while read -r n; do sum=$((sum + n)); done < numbers.txt; echo $sum > sum.txt",
        '[ "$(cat sum.txt 2>/dev/null)" = 42 ]',
    ),
}
"""The tasks by name."""


def write_tasks(home: Path, image: str = "") -> Path:
    """Write the tasks as folders.

    Args:
        home: folder of the tasks' folders.
        image: base image of their Dockerfiles. If empty, the tasks have no image.
    """
    for name, task in TASKS.items():
        folder = home / name
        for path, text in task.files.items():
            _write(folder / "environment" / path, text)
        if image:
            copied = sorted({path.split("/")[0] for path in task.files})
            lines = [f"FROM {image}", "WORKDIR /app"]
            lines += [f"COPY {one} /app/{one}" for one in copied]
            _write(folder / "environment" / "Dockerfile", "\n".join(lines) + "\n")
        _write(folder / "task.toml", _TOML)
        _write(folder / "instruction.md", f"{task.instruction}\n")
        _write(folder / "tests" / "test.sh", _TEST.format(condition=task.condition))
        _write(folder / "solution" / "solve.sh", f"#!/bin/bash\nset -eu\n{task.solution}\n")
    _write(home / "add-header" / "tests" / "expected.txt", "name,age\nAda,36\nAlan,41\n")
    return home


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    if text.startswith("#!"):
        path.chmod(0o755)
