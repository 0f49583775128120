"""Finds the token that completes a stop string."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

_SLACK = 16
"""Maximum tokens without text (control tokens) within a stop string."""


class StopStrings:
    """Checks whether the newest token completes one of ``strings``.

    Only a token that can contain a stop string's last character can complete the string, so a set
    lookup excludes nearly every token. For the other tokens, the end of the completion is decoded
    as a whole, so that characters of several byte-level tokens are decoded correctly.
    """

    def __init__(
        self, strings: Sequence[str], closing: frozenset[int], tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self._strings = strings
        self._closing = closing
        self._tokenizer = tokenizer
        # All tokens but a few have at least one byte.
        self._window = max(len(s.encode()) for s in strings) + _SLACK

    def completed_by(self, token_ids: Sequence[int]) -> bool:
        """Whether the last of the sampled ``token_ids`` completes a stop string."""
        if token_ids[-1] not in self._closing:
            return False
        text = _decode(self._tokenizer, token_ids[-self._window :])
        return any(string in text for string in self._strings)


class StopStringTable:
    """Caches :class:`StopStrings`, because most requests have the same stop strings."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
        # A copy: a fast tokenizer rejects a thread while another one uses it.
        self._tokenizer = copy.deepcopy(tokenizer)
        self._vocab_size = vocab_size
        self._texts: list[str] = []
        self._made: dict[tuple[str, ...], StopStrings] = {}

    def get(self, strings: tuple[str, ...]) -> StopStrings:
        """The matcher for these stop strings."""
        if strings not in self._made:
            closing = frozenset().union(*(self._closing(s[-1]) for s in strings))
            self._made[strings] = StopStrings(strings, closing, self._tokenizer)
        return self._made[strings]

    def _closing(self, character: str) -> frozenset[int]:
        """Ids of the tokens that can contain ``character``."""
        if character.isspace():
            # Decoded alone, a token may lose its leading space.
            return frozenset(range(self._vocab_size))
        if not self._texts:
            # A model may have more rows than its tokenizer has tokens; these rows have no text.
            known = min(self._vocab_size, len(self._tokenizer))
            self._texts = [_decode(self._tokenizer, [i]) for i in range(known)]
        # A character outside ASCII may span tokens, each of which decodes to U+FFFD alone.
        signs = character if character.isascii() else character + "\ufffd"
        return frozenset(
            i for i, text in enumerate(self._texts) if any(sign in text for sign in signs)
        )


def _decode(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    # Special tokens count as text: a tool syntax may use one as its stop string.
    text = tokenizer.decode(
        list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    assert isinstance(text, str)
    return text
