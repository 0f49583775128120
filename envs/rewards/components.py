"""The rewards of ``envs.rewards`` as named components of a rubric, with options.

The reward floor of a format is its full value, which a text of tags alone can earn. The floor of
a comparison of answers is 0, because environments read an answer only in tags or another format.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from envs.rewards import answers, format, retrieval, thinking, wording
from envs.rewards.rubric import Reward, Transcript


def accuracy() -> Reward:
    """The environment's own verdict, as in DeepSeek-R1-Zero's accuracy reward."""
    return Reward("accuracy", lambda transcript: transcript.correct)


def verdict(right: float = 1.0, wrong: float = -1.0, none: float = -1.0) -> Reward:
    """Fixed values for a right answer, a wrong answer and no answer; by default DAPO's 1 and -1.

    Raises:
        ValueError: ``right`` is not above ``wrong``, or ``none`` is above ``wrong``.
    """
    if not right > wrong >= none:
        raise ValueError(
            f"right ({right}) must be worth more than wrong ({wrong}), and none ({none}) no more"
        )

    def score(transcript: Transcript) -> float:
        if transcript.answer is None:
            return none
        return wrong + (right - wrong) * transcript.correct

    return Reward("verdict", score, (none, right), reward_floor=wrong)


def think_answer() -> Reward:
    """1 for a thought and then an answer, both in tags; see ``thinking.think_answer_format``."""
    return _text("think_answer", thinking.think_answer_format)


def tag_count() -> Reward:
    """0.25 for each of the four think and answer tags; see ``thinking.tag_count``."""
    return _text("tag_count", thinking.tag_count)


def one_think_end() -> Reward:
    """1 for one closing think tag on its own line (open-rs); see ``thinking.one_think_end``."""
    return _text("one_think_end", thinking.one_think_end)


def repetition(ngram: int = 3, max_penalty: float = -1.0) -> Reward:
    """A penalty for repeated n-grams in the agent's text; see ``wording.repetition_penalty``.

    Raises:
        ValueError: an option is out of range.
    """
    if ngram < 1:
        raise ValueError(f"ngram ({ngram}) must be >= 1")
    if max_penalty > 0:
        raise ValueError(f"max_penalty ({max_penalty}) must be <= 0")

    def score(transcript: Transcript) -> float:
        return wording.repetition_penalty(transcript.written, ngram, max_penalty)

    return Reward("repetition", score, (max_penalty, 0.0))


def language(language: str = "en") -> Reward:
    """The share of words in the language's script; see ``wording.language_consistency``.

    Raises:
        ValueError: the language's script is unknown.
    """
    if language not in wording.SCRIPTS:
        known = ", ".join(sorted(wording.SCRIPTS))
        raise ValueError(f"language ({language!r}) must be one of {known}")

    def score(transcript: Transcript) -> float:
        return wording.language_consistency(thinking.thoughts(transcript.written), language)

    return Reward("language", score, reward_floor=1.0)


def research_format() -> Reward:
    """1 for a complete text in ReSearch's format; see ``format.research_format``."""
    return _format("research_format", format.research_format)


def searcher_format() -> Reward:
    """1 for a complete text in R1-Searcher's format; see ``retrieval.searcher_format``."""
    return _format("searcher_format", retrieval.searcher_format)


def search_r1_format() -> Reward:
    """1 for a complete text in Search-R1's format; see ``retrieval.search_r1_format``."""
    return _format("search_r1_format", retrieval.search_r1_format)


def em(normalizer: str = "squad") -> Reward:
    """1 for an exact match with any gold; see ``answers.exact_match``."""
    normalize = _normalizer(normalizer)
    return _answer("em", lambda answer, golds: answers.exact_match(answer, golds, normalize))


def f1(normalizer: str = "squad") -> Reward:
    """The best F1 over the golds; see ``answers.f1``."""
    normalize = _normalizer(normalizer)
    return _answer("f1", lambda answer, golds: answers.f1(answer, golds, normalize))


def cover_em(normalizer: str = "r1-searcher") -> Reward:
    """1 if the answer contains all words of a gold; see ``answers.cover_match``."""
    normalize = _normalizer(normalizer)
    return _answer("cover_em", lambda answer, golds: answers.cover_match(answer, golds, normalize))


def jaccard() -> Reward:
    """The share of words in common with a gold; see ``answers.jaccard``."""
    return _answer("jaccard", answers.jaccard)


def _text(name: str, score: Callable[[str], float]) -> Reward:
    return Reward(name, lambda transcript: score(transcript.text), reward_floor=1.0)


def _format(name: str, fault: Callable[[str], str | None]) -> Reward:
    def score(transcript: Transcript) -> float:
        return float(transcript.complete and fault(transcript.text) is None)

    return Reward(name, score, reward_floor=1.0)


def _answer(name: str, compare: Callable[[str, Sequence[str]], float]) -> Reward:
    def score(transcript: Transcript) -> float:
        if not transcript.golds:
            raise ValueError(f"{name} compares with gold answers, and this environment has none")
        return 0.0 if transcript.answer is None else compare(transcript.answer, transcript.golds)

    return Reward(name, score)


def _normalizer(name: str) -> answers.Normalizer:
    if name not in answers.NORMALIZERS:
        raise ValueError(f"normalizer ({name!r}) must be one of {', '.join(answers.NORMALIZERS)}")
    return answers.NORMALIZERS[name]
