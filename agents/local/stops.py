"""Stop strings over tokens: which token completes one."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

_SLACK = 16
"""Tokens that may add no text of their own (control tokens) within a stop string."""


class StopStrings:
    """Tells whether the newest token completes one of ``strings``.

    Nearly every token is dismissed by a set lookup: a stop string ends with the token that brings
    its last character. Only then is the tail decoded, whole, so that characters which are spread
    over several byte-level tokens are read right.
    """

    def __init__(
        self, strings: Sequence[str], closing: frozenset[int], tokenizer: PreTrainedTokenizerBase
    ) -> None:
        self._strings = strings
        self._closing = closing
        self._tokenizer = tokenizer
        # Every token but a few brings at least one byte.
        self._window = max(len(s.encode()) for s in strings) + _SLACK

    def completed_by(self, token_ids: Sequence[int]) -> bool:
        """True when the last of ``token_ids`` (sampled tokens only) completes a stop string."""
        if token_ids[-1] not in self._closing:
            return False
        text = _decode(self._tokenizer, token_ids[-self._window :])
        return any(string in text for string in self._strings)


class StopStringTable:
    """Makes :class:`StopStrings` and keeps them: the same few come with every request."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
        # A copy: a fast tokenizer refuses one thread while another one is encoding with it.
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
        """Ids of the tokens that may bring ``character``."""
        if character.isspace():
            # Decoded alone, a token may lose the space that it begins with.
            return frozenset(range(self._vocab_size))
        if not self._texts:
            # Models may have more rows than their tokenizer has tokens: those bring no text.
            known = min(self._vocab_size, len(self._tokenizer))
            self._texts = [_decode(self._tokenizer, [i]) for i in range(known)]
        # Outside ASCII a character may be spread over tokens, which decode to U+FFFD when alone.
        signs = character if character.isascii() else character + "\ufffd"
        return frozenset(
            i for i, text in enumerate(self._texts) if any(sign in text for sign in signs)
        )


def _decode(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    # Special tokens are text here: a tool syntax may use one as its stop string.
    text = tokenizer.decode(
        list(token_ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    assert isinstance(text, str)
    return text
