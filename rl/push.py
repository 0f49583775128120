"""``python -m rl.push RUN repo=user/name``: upload a trained model with its card to the hub.

The best checkpoint of the run is uploaded to a model repository on the Hugging Face hub, with the
README.md that the run wrote beside it. Files that belong to no model stay here, unless ``include``
names them; both lists are written to stderr before the upload. The token is that of
``hf auth login`` or of ``HF_TOKEN``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from rl.errors import RunFailure, UsageError
from rl.reports.card import CARD, PLACEHOLDER, card_text
from rl.run.process.command import answer, report, run_command
from rl.settings.models import find_model
from rl.settings.parsing.from_python import from_python

_KEPT_HERE = ("trainer_state.pt", "learner")
"""Names of a file and a folder that continue a run and belong to no published model."""
_MODEL_FILES = (
    *("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "adapter_model.bin"),
    *(
        "pytorch_model.bin.index.json",
        "config.json",
        "adapter_config.json",
        "generation_config.json",
    ),
    *("tokenizer_config.json", "processor_config.json", "preprocessor_config.json"),
    *("tokenizer.json", "tokenizer.model", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece*.model"),
    *("chat_template.json", "chat_template.jinja", "additional_chat_templates/*.jinja"),
    *("modeling_*.py", "configuration_*.py", "tokenization_*.py", "curve.png", "LICENSE*"),
)
"""Names of the files of a model, relative to its folder."""
_MOST_LISTED = 20
_REPO = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_LOGIN = "log in with `hf auth login`, or set HF_TOKEN (https://huggingface.co/settings/tokens)"


@from_python
@dataclass(frozen=True, kw_only=True)
class PushConfig:
    """Upload a trained model and its card to the Hugging Face hub."""

    run: str
    """A run's folder, whose best checkpoint is uploaded, or a checkpoint's folder. "run=" may be
    omitted."""
    repo: str
    """The model's id on the hub, USER/NAME. The repository is created if it does not exist."""
    private: bool = False
    """Whether a new repository is private. An existing repository stays as it is."""
    revision: str = "main"
    """The branch."""
    message: str = "Upload the model"
    """The message of the commit."""
    include: tuple[str, ...] = ()
    """Further files to upload: names or patterns, relative to the model's folder. If
    empty, only the files of a model are uploaded."""
    dry_run: bool = False
    """Print the settings and stop; the files and the card are listed on stderr."""

    def __post_init__(self) -> None:
        if not _REPO.fullmatch(self.repo):
            raise ValueError(f"repo ({self.repo}) must be USER/NAME")


@dataclass(frozen=True)
class Upload:
    """The files of a model as they will appear on the hub."""

    model: Path
    files: tuple[Path, ...]
    """Files of the checkpoint, except the card."""
    skipped: tuple[str, ...]
    """Names of the other files, which stay here."""
    card: str


def prepare(config: PushConfig) -> Upload:
    """The files of the upload, and the card for this repository.

    The card is the README.md in the checkpoint. A checkpoint of an earlier version has none, and
    gets one.

    Raises:
        UsageError: the folder holds no model, or a model without a card that no run recorded; or
            ``include`` names no file.
    """
    model = Path(find_model(config.run, "run")).expanduser()
    if not model.is_dir():
        raise UsageError(f"run ({config.run}) is no folder: give a run's or a checkpoint's folder")
    file = model / CARD
    text = (
        file.read_text(encoding="utf-8") if file.is_file() else card_text(model, _run_of(model), {})
    )
    every = [path.relative_to(model).as_posix() for path in model.rglob("*") if path.is_file()]
    names = sorted(name for name in every if name != CARD and not _stays(name))
    for pattern in config.include:
        if not any(_matches(name, pattern) for name in names):
            raise UsageError(f"include ({pattern}) names no file in {model}")
    patterns = (*_MODEL_FILES, *config.include)
    kept = [name for name in names if any(_matches(name, pattern) for pattern in patterns)]
    skipped = tuple(name for name in names if name not in kept)
    files = tuple(model / name for name in kept)
    return Upload(model, files, skipped, text.replace(PLACEHOLDER, config.repo))


def _matches(name: str, pattern: str) -> bool:
    """Whether a file's relative name matches a pattern with as many folders."""
    return name.count("/") == pattern.count("/") and fnmatchcase(name, pattern)


def _stays(name: str) -> bool:
    """Whether a file is hidden, or continues the run: no pattern selects it."""
    parts = name.split("/")
    return parts[0] in _KEPT_HERE or any(part.startswith(".") for part in parts)


def push(config: PushConfig) -> dict[str, Any]:
    """Upload the model in one commit.

    Returns:
        The local folder ("model"), the repository's URL, the commit's URL and the files.

    Raises:
        UsageError: there is no model, or no token.
        RunFailure: the hub refuses the upload or cannot be reached.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, get_token
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    # The error of the hub's HTTP library, which differs from version to version.
    from huggingface_hub.errors import HTTPError as ConnectionFailed  # type: ignore[attr-defined]

    upload = prepare(config)
    if get_token() is None:
        raise UsageError(
            f"repo ({config.repo}): there is no token of the Hugging Face hub: {_LOGIN}"
        )
    report(_listed(config, upload))
    operations = [
        CommitOperationAdd(path.relative_to(upload.model).as_posix(), path) for path in upload.files
    ]
    operations.append(CommitOperationAdd(CARD, upload.card.encode()))
    api = HfApi(library_name="turnwise")
    try:
        repo = api.create_repo(config.repo, private=config.private, exist_ok=True)
        commit = api.create_commit(
            repo_id=config.repo,
            operations=operations,
            commit_message=config.message,
            revision=config.revision,
        )
    except HfHubHTTPError as error:
        status = error.response.status_code if error.response is not None else 0
        fix = f": {_LOGIN}, with the right to write" if status in (401, 403) else ""
        raise RunFailure(f"the hub refused {config.repo}: {_first_line(error)}{fix}") from error
    except (OfflineModeIsEnabled, ConnectionFailed, OSError) as error:
        raise RunFailure(f"the hub cannot be reached: {_first_line(error)}") from error
    return {
        "model": str(upload.model),
        "url": str(repo),
        "commit": str(commit.commit_url),
        "files": [operation.path_in_repo for operation in operations],
    }


def _run_of(model: Path) -> Path:
    """The folder of the run that saved a checkpoint."""
    return model.parents[1]


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


def _listed(config: PushConfig, upload: Upload) -> str:
    """The files that are uploaded, with their sizes, and those that stay here."""
    lines = [f"{upload.model} -> {config.repo}", CARD]
    for path in upload.files:
        size = path.stat().st_size / 2**20
        lines.append(f"{path.relative_to(upload.model).as_posix()}  {size:.1f} MiB")
    if upload.skipped:
        some = ", ".join(upload.skipped[:_MOST_LISTED])
        more = len(upload.skipped) - _MOST_LISTED
        rest = f" and {more} more" if more > 0 else ""
        lines.append(f"not uploaded, as no files of a model: {some}{rest} (include=NAME adds one)")
    return "\n".join(lines)


def _explain(config: PushConfig) -> str:
    """What would be uploaded."""
    upload = prepare(config)
    return f"{_listed(config, upload)}\n\n{upload.card}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    return run_command("rl.push", PushConfig, {}, _run, argv, _explain)


def _run(config: PushConfig) -> int:
    return answer(push(config))


if __name__ == "__main__":
    sys.exit(main())
