"""Encodes text so that only the chat template can write special tokens.

A tokenizer turns the text ``<|im_end|>`` into the token that ends a message, even if a program, a
web page or a user wrote that text. Therefore special tokens get private names here. No text can
contain a private name, and the text ``<|im_end|>`` is encoded like any other.
(``sanitize_control_tokens`` of transformers accepts only whole conversations, and encodes them in
pieces.)
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import takewhile

from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

# Unicode reserves these code points for internal use by programs.
_NAME, _HIDDEN = "\ufdd0", "\ufdd1"


class Encoder:
    """Encodes texts in which special tokens have private names.

    Args:
        tokenizer: a Hugging Face tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        every = set(tokenizer.all_special_ids)
        self._specials: dict[int, AddedToken] = {
            token_id: token
            for token_id, token in tokenizer.added_tokens_decoder.items()
            if token.special or token_id in every
        }
        self._ids = {token.content: token_id for token_id, token in self._specials.items()}
        # If two special tokens have a common start, the longer one matches.
        texts = sorted(self._ids, key=len, reverse=True)
        self._any = re.compile("|".join(map(re.escape, texts)) or r"(?!)")
        fast = isinstance(tokenizer, PreTrainedTokenizerFast)
        self._rust = _renamed(tokenizer.backend_tokenizer, self._specials) if fast else None
        self._first_name = min(self._rust[1], default=0) if self._rust is not None else 0

    def is_special(self, token_id: int) -> bool:
        """Whether a token is special, so that no text is encoded as this token."""
        return token_id in self._specials

    def plain(self, text: str) -> str:
        """Text for :meth:`encode` that contains no special tokens.

        Lone surrogates, which no tokenizer accepts, and the two characters of private names are
        escaped.
        """
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
        return text.replace(_NAME, r"\ufdd0").replace(_HIDDEN, r"\ufdd1")

    def hide(self, text: str) -> str:
        """Text to insert into a template, with the texts of special tokens hidden."""
        return self._any.sub(
            lambda found: f"{_HIDDEN}{self._ids[found[0]]}{_HIDDEN}", self.plain(text)
        )

    def rendered(self, text: str) -> str:
        """A template's output, in which special tokens have their private names.

        Texts that :meth:`hide` has hidden are restored.
        """
        meant = self._any.sub(lambda found: _name(self._ids[found[0]]), text)
        return re.sub(
            f"{_HIDDEN}([0-9]+){_HIDDEN}",
            lambda found: self._specials[int(found[1])].content,
            meant,
        )

    def shared(self, one: str, other: str) -> int:
        """Length of the common start of two texts from :meth:`rendered`. No name is cut."""
        same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
        length = sum(1 for _ in same)
        inside = one.count(_NAME, 0, length) % 2
        return one.rindex(_NAME, 0, length) if inside else length

    def last_special(self, text: str) -> int:
        """The index of the last special token in a text from :meth:`rendered`, or its length."""
        end = text.rfind(_NAME)
        return text.rindex(_NAME, 0, end) if end >= 0 else len(text)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text from :meth:`plain` or :meth:`rendered`."""
        if self._rust is not None:
            rust, names = self._rust
            ids: list[int] = rust.encode(text, add_special_tokens=False).ids
            # Private names have the highest ids, and most texts contain none.
            if max(ids, default=-1) < self._first_name:
                return ids
            return [names.get(token_id, token_id) for token_id in ids]
        return self._encode_in_parts(text)

    def _encode_in_parts(self, text: str) -> list[int]:
        """Encode a text with a tokenizer that is written in Python; see :meth:`encode`."""
        ids: list[int] = []
        # Texts alternate with ids of special tokens.
        parts: list[str] = re.split(f"{_NAME}([0-9]+){_NAME}", text)
        for index in range(0, len(parts), 2):
            part = parts[index]
            if index > 0:
                before = int(parts[index - 1])
                ids.append(before)
                part = part.lstrip() if self._specials[before].rstrip else part
            if index + 1 < len(parts) and self._specials[int(parts[index + 1])].lstrip:
                part = part.rstrip()
            ids += self._tokenizer.encode(part, add_special_tokens=False, split_special_tokens=True)
        return ids


def _name(token_id: int) -> str:
    return f"{_NAME}{token_id}{_NAME}"


def _renamed(
    tokenizer: Tokenizer, specials: Mapping[int, AddedToken]
) -> tuple[Tokenizer, dict[int, int]]:
    """A copy that knows special tokens only by private names, and a map from new to old ids."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    copy.add_special_tokens(list(specials.values()))
    # From here on the copy encodes special tokens as text; tokens added now are not special.
    copy.encode_special_tokens = True
    copy.add_tokens(
        [
            AddedToken(
                _name(token_id),
                single_word=token.single_word,
                lstrip=token.lstrip,
                rstrip=token.rstrip,
                normalized=False,
                special=False,
            )
            for token_id, token in specials.items()
        ]
    )
    ids = {}
    for token_id in specials:
        renamed = copy.token_to_id(_name(token_id))
        assert renamed is not None
        ids[renamed] = token_id
    return copy, ids
