"""The text of each token, by the run's own tokenizer."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from tokenizers import Tokenizer

logger = logging.getLogger(__name__)
TOKENIZER = "tokenizer.json"
"""Name of a tokenizer's file."""
_UNFINISHED = "\N{REPLACEMENT CHARACTER}"
_LONGEST = 6
"""Tokens after which an unfinished character is shown as it is. A character has 4 bytes at most."""


class Decoder:
    """Splits token ids into the texts that they add.

    Args:
        tokenizer: the run's tokenizer, or None if it is unknown. Texts are then ids.
    """

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._size = 0 if tokenizer is None else tokenizer.get_vocab_size(with_added_tokens=True)

    @property
    def known(self) -> bool:
        """Whether the run's tokenizer is known."""
        return self._tokenizer is not None

    def pieces(self, token_ids: Sequence[int]) -> list[str]:
        """The text that each token adds. A token that ends within a character adds "" to it."""
        if self._tokenizer is None:
            return [f"<{token}>" for token in token_ids]
        pieces, before, start = list[str](), 0, 0
        for end in range(1, len(token_ids) + 1):
            context = self._decode(token_ids[before:start])
            text = self._decode(token_ids[before:end])[len(context) :]
            if text.endswith(_UNFINISHED) and end - start < _LONGEST and end < len(token_ids):
                pieces.append("")
                continue
            pieces.append(text)
            before, start = start, end
        return pieces

    def _decode(self, token_ids: Sequence[int]) -> str:
        assert self._tokenizer is not None
        known = [token for token in token_ids if 0 <= token < self._size]
        return str(self._tokenizer.decode(known, skip_special_tokens=False))


def decoder_of(folder: Path, model: str) -> Decoder:
    """The decoder of a run: its checkpoints' tokenizer, or the one of the model it started from.

    Nothing is downloaded.
    """
    found = [*checkpoint_files(folder, TOKENIZER), file_of_model(model, TOKENIZER)]
    for path in filter(None, found):
        if path.is_file():
            try:
                return Decoder(Tokenizer.from_file(str(path)))
            except Exception as error:  # The library raises no other type.
                logger.warning("%s cannot be read: %s", path, error)
    return Decoder(None)


def checkpoint_files(folder: Path, name: str) -> list[Path]:
    """The files called ``name`` in a run's checkpoints, the newest checkpoint first."""
    checkpoints = folder / "checkpoints"
    return sorted(checkpoints.glob(f"*/{name}"), reverse=True) if checkpoints.is_dir() else []


def file_of_model(model: str, name: str) -> Path | None:
    """A file of a model's folder, or of its download; None if this machine does not have it."""
    # A model's folder may have a name that no repository, or no user, can have.
    with suppress(RuntimeError):
        path = Path(model).expanduser() / name
        if model and path.is_file():
            return path
    with suppress(HFValidationError):
        if model.count("/") == 1 and not model.startswith(("/", ".")):
            cached = try_to_load_from_cache(model, name)
            if isinstance(cached, str):
                return Path(cached)
    return None
