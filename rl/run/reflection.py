"""Whether a text looks back at itself in so many words."""

from __future__ import annotations

import re

PHRASES = ("wait,", "recheck", "retry", "alternatively,", "however,")
"""The reflection patterns that the code of Open-Reasoner-Zero (arXiv 2503.24290) counts."""
_PHRASE = re.compile("|".join(rf"\b{re.escape(phrase)}" for phrase in PHRASES), re.IGNORECASE)


def reflects(text: str) -> bool:
    """Whether one of :data:`PHRASES` stands in the text, at the beginning of a word.

    Explicit reflection only: of a chain that corrects itself without a word of it nothing is known.
    Rethinking Reflection in Pre-Training (arXiv 2504.04022) asks a model in the place of a list.
    """
    return _PHRASE.search(text) is not None
