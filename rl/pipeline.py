"""``python -m rl.pipeline recipes/r1.toml out=runs/r1``: runs commands one after the other.

A file lists stages, each a command of this package with its settings. A setting may refer to the
output of an earlier stage::

    [settings]                  # for every stage whose command has them
    env = "code-sandbox"

    [[stage]]
    name = "cold-start"
    run = "sft"
    steps = 200

    [[stage]]
    name = "rl"
    run = "train"
    model = "{cold-start}"      # the stage's model; {cold-start.out} is its folder

The command line overrides the file: ``key=value`` overrides [settings], ``STAGE.key=value`` a
stage's own settings. The same command line continues a stopped pipeline and does not repeat
finished stages.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from typing import Any

from rl.distill import CONVERSATIONS, DistillConfig
from rl.errors import EXPECTED_ERRORS, FAILED, INTERRUPTED, UsageError
from rl.files import make_folder, replace_text, write_stdout
from rl.judge import JUDGED, JudgeConfig
from rl.merge import MergeConfig
from rl.run.process.command import answer, last_words, report
from rl.run.process.interrupt import terminable
from rl.settings.finetuning import DPOConfig, RewardModelConfig, SFTConfig
from rl.settings.parsing.command_line import parse
from rl.settings.parsing.files import read_toml, table_words
from rl.settings.train import PRESETS, TrainConfig

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
NO_STAGES_OWN = {
    "out": "each stage gets a folder within the pipeline's out=...",
    "resume": "the same command line continues the pipeline",
    "dry_run": "--dry-run applies to the whole pipeline",
}
"""Settings that a stage is not allowed to have, each with the reason."""


@dataclass(frozen=True)
class Command:
    """A command that can be a stage."""

    module: str
    config: type[Any]
    """The dataclass of its settings."""
    product: str
    """Path of its output within its folder."""
    presets: Mapping[str, Mapping[str, str]]
    resumes: bool = False
    """Whether resume=auto continues the command after a stop."""


COMMANDS = {
    "train": Command("rl.train", TrainConfig, "checkpoints/best", PRESETS, resumes=True),
    "sft": Command("rl.sft", SFTConfig, "checkpoints/last", {}),
    "reward_model": Command("rl.reward_model", RewardModelConfig, "checkpoints/last", {}),
    "dpo": Command("rl.dpo", DPOConfig, "checkpoints/last", {}),
    "distill": Command("rl.distill", DistillConfig, CONVERSATIONS, {}),
    "judge": Command("rl.judge", JudgeConfig, JUDGED, {}),
    "merge": Command("rl.merge", MergeConfig, "checkpoints/last", {}),
}


@dataclass(frozen=True)
class Stage:
    """A stage with its resolved settings."""

    name: str
    command: Command
    folder: Path
    words: dict[str, str]

    @property
    def product(self) -> Path:
        """Path of the stage's output."""
        return self.folder / self.command.product

    @property
    def record(self) -> Path:
        """The file that marks the stage as done, with its settings."""
        return self.folder / "stage.json"

    @property
    def argv(self) -> list[str]:
        """The arguments for the stage's command."""
        return [f"{key}={value}" for key, value in {**self.words, "out": self.folder}.items()]

    def is_done(self) -> bool:
        """Whether the stage is done with the same settings.

        Raises:
            UsageError: the stage is done with other settings.
        """
        if not self.record.exists():
            return False
        before = json.loads(self.record.read_text())["words"]
        changed = [k for k in {**before, **self.words} if before.get(k) != self.words.get(k)]
        if changed:
            raise UsageError(
                f"stage {self.name!r} in {self.folder} was made with other settings "
                f"({', '.join(sorted(changed))}): choose another out=..., or delete that folder "
                f"and those made from it"
            )
        return True


@dataclass(frozen=True, kw_only=True)
class PipelineConfig:
    """Settings of a pipeline, for Python code."""

    file: str
    """The file of stages."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings that override the file, by key or STAGE.key."""
    out: str = ""
    """The output folder; empty for runs/ and the name of the file."""
    dry_run: bool = False
    """Print the resolved configuration and stop."""

    @property
    def folder(self) -> Path:
        """The pipeline's folder, which has a folder for each stage."""
        return Path(self.out or f"runs/{Path(self.file).stem}").expanduser()


def read_stages(path: str, out: Path, words: Mapping[str, str]) -> list[Stage]:
    """The stages of a file, with checked settings.

    Args:
        path: the file.
        out: the pipeline's folder, which has a folder for each stage.
        words: settings of the command line, by ``key`` or ``STAGE.key``.

    Raises:
        UsageError: the file or a setting is wrong.
    """
    tables = read_toml(path, "FILE")
    unknown = set(tables) - {"settings", "stage"}
    given = tables.get("stage", [])
    if unknown or not isinstance(given, list) or not given:
        raise UsageError(f"{path} must hold [[stage]] tables and at most one [settings]")
    names = [_name(path, table) for table in given]
    if len(set(names)) < len(names):
        raise UsageError(f"{path}: two stages have the same name ({', '.join(names)})")
    own = {key: value for key, value in words.items() if key.split(".")[0] in names}
    common = table_words(tables.get("settings", {}))
    common |= {key: value for key, value in words.items() if key not in own}
    stages: list[Stage] = []
    for number, (name, table) in enumerate(zip(names, given, strict=True), start=1):
        mine = {k[len(name) + 1 :]: v for k, v in own.items() if k.split(".")[0] == name}
        stages.append(_stage(table, name, out / f"{number}-{name}", common, mine, stages))
    for key in common:
        stated = [name for name, table in zip(names, given, strict=True) if key in _stated(table)]
        if not any(key in stage.words for stage in stages if stage.name not in stated):
            what = "belongs to no stage"
            if stated:
                what = f"is set by every stage that has it (give {stated[0]}.{key}=...)"
            raise UsageError(f"setting {key!r} {what} in {path}")
    return stages


def _stated(table: Mapping[str, Any]) -> dict[str, str]:
    """The settings of a stage's own table."""
    return table_words({k: v for k, v in table.items() if k not in ("name", "run")})


def _name(path: str, table: Mapping[str, Any]) -> str:
    name, run = table.get("name"), table.get("run")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise UsageError(f"{path}: a stage's name ({name}) must be letters, digits, - and _")
    if run not in COMMANDS:
        known = ", ".join(COMMANDS)
        raise UsageError(f"{path}: stage {name!r}: run ({run}) must be one of {known}")
    return name


def _stage(
    table: Mapping[str, Any],
    name: str,
    folder: Path,
    common: Mapping[str, str],
    own: Mapping[str, str],
    before: Sequence[Stage],
) -> Stage:
    command = COMMANDS[table["run"]]
    known = {f.name for f in fields(command.config)}
    shared = {k: v for k, v in common.items() if k.split(".")[0] in known}
    paths = {stage.name: stage.product for stage in before}
    paths |= {f"{stage.name}.out": stage.folder for stage in before}
    words = {
        key: _filled(value, paths, f"stage {name!r}: {key}")
        for key, value in {**shared, **_stated(table), **own}.items()
    }
    for key in NO_STAGES_OWN.keys() & words.keys():
        raise UsageError(f"stage {name!r}: {key} ({words[key]}): drop it, {NO_STAGES_OWN[key]}")
    stage = Stage(name, command, folder, words)
    try:
        parse(command.config, stage.argv, command=command.module, presets=command.presets)
    except UsageError as error:
        raise UsageError(f"stage {name!r}: {error}") from error
    return stage


def _filled(text: str, paths: Mapping[str, Path], where: str) -> str:
    """A setting, in which the paths of earlier stages replace their names in braces."""

    def path(match: re.Match[str]) -> str:
        if match[1] not in paths:
            known = ", ".join(paths) or "there is none"
            raise UsageError(f"{where} ({text}) names no earlier stage: {known}")
        return str(paths[match[1]])

    return re.sub(r"\{([^{}]+)\}", path, text)


def run_stages(stages: Sequence[Stage]) -> int:
    """Run the unfinished stages. Returns the exit code of the first stage that stops.

    Raises:
        UsageError: a finished stage had other settings, or used the output of an earlier stage that
            is gone.
    """
    for stage, argv in unfinished(stages):
        code: int = import_module(stage.command.module).main(argv)
        if code:
            return code
    return 0


def unfinished(stages: Sequence[Stage]) -> Iterator[tuple[Stage, list[str]]]:
    """The unfinished stages, each with the arguments of its command.

    A stage counts as done when the caller requests the next one.

    Raises:
        UsageError: a finished stage had other settings, or used the output of an earlier stage that
            is gone.
    """
    done = [stage.is_done() for stage in stages]
    _refuse_stale(stages, done)
    for number, stage in enumerate(stages, start=1):
        title = f"stage {number}/{len(stages)}, {stage.name}"
        if done[number - 1]:
            report(f"{title}: already done")
            continue
        argv = [*stage.argv, *(["resume=auto"] if stage.command.resumes else [])]
        report(f"{title}: python -m {stage.command.module} {shlex.join(argv)}")
        _begin(stage)
        started = time.monotonic()
        yield stage, argv
        record = {"words": stage.words, "seconds": time.monotonic() - started}
        replace_text(stage.record, json.dumps(record, indent=2) + "\n")


def _refuse_stale(stages: Sequence[Stage], done: Sequence[bool]) -> None:
    """Check that no finished stage depends on a stage that must run again."""
    for late, stage in enumerate(stages):
        named = " ".join(stage.words.values())
        for before, made in zip(stages[:late], done, strict=False):
            if done[late] and not made and str(before.folder) in named:
                raise UsageError(
                    f"stage {stage.name!r} in {stage.folder} was made from a {before.name!r} that "
                    f"is gone: delete that folder as well, or choose another out=..."
                )


def _begin(stage: Stage) -> None:
    """Create a stage's folder; empty it first if the stage is unfinished and cannot resume."""
    begun = stage.folder / "begun.json"
    if begun.exists() and not stage.command.resumes:
        shutil.rmtree(stage.folder)
    make_folder(stage.folder)
    replace_text(begun, json.dumps(stage.words, indent=2) + "\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    if not words or {"--help", "-h", "help"} & set(words):
        sys.stdout.write(
            f"usage: python -m rl.pipeline FILE out=FOLDER [key=value] [STAGE.key=value] "
            f"[--dry-run]\n\n{__doc__}"
        )
        return 0
    try:
        with terminable():
            return _run(words[0], words[1:])
    except EXPECTED_ERRORS as error:
        last_words(f"error: {error}")
        return FAILED
    except KeyboardInterrupt:
        last_words("interrupted")
        return INTERRUPTED


def _run(path: str, rest: Sequence[str]) -> int:
    settings, dry = {}, False
    for word in rest:
        if word.removeprefix("--").replace("-", "_").lower() in ("dry_run", "dry_run=true"):
            dry = True
        elif "=" in word:
            key, value = word.removeprefix("--").split("=", 1)
            settings[key] = value
        else:
            raise UsageError(f"{word!r} is not of the form key=value (see --help)")
    out = Path(settings.pop("out", f"runs/{Path(path).stem}")).expanduser()
    stages = read_stages(path, out, settings)
    if dry:
        for stage in stages:
            write_stdout(f"python -m {stage.command.module} {shlex.join(stage.argv)}\n")
        return 0
    code = run_stages(stages)
    if code == 0:
        made = {stage.name: str(stage.product) for stage in stages}
        answer(made)
    return code


if __name__ == "__main__":
    sys.exit(main())
