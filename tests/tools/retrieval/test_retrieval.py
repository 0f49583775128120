"""BM25+ over passages: the formula, order, ties, and the search tool on top."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tools
from tools.builtin.search import NOTHING_FOUND, search_tool
from tools.retrieval import BM25, Passage, RankBM25, index_passages
from tools.retrieval.tokenizer import tokenize

ANIMALS = [
    Passage("1", "the fox jumps over the lazy dog"),
    Passage("2", "a dog sleeps"),
    Passage("3", "foxes and dogs and a dog"),
    Passage("4", "fish swim"),
]


def by_formula(query: str, passages: list[Passage]) -> dict[str, float]:
    """Lv & Zhai (2011), equation 9, straight from the paper."""
    k1, b, delta = 1.5, 0.75, 1.0
    words = {p.id: tokenize(f"{p.title} {p.text}") for p in passages}
    mean = sum(map(len, words.values())) / len(words)
    scores = {}
    for name, document in words.items():
        score = 0.0
        for term in tokenize(query):
            tf = document.count(term)
            if tf:
                df = sum(term in other for other in words.values())
                idf = math.log((len(words) + 1) / df)
                norm = k1 * (1 - b + b * len(document) / mean)
                score += idf * (delta + (k1 + 1) * tf / (norm + tf))
        scores[name] = score
    return scores


async def test_scores_are_those_of_the_formula():
    [found] = await RankBM25(ANIMALS).search(["fox dog dog"], 4)
    expected = by_formula("fox dog dog", ANIMALS)
    assert [p.id for p in found] == sorted(expected, key=lambda i: -expected[i])[:3]
    for passage in found:
        assert passage.score == pytest.approx(expected[passage.id], abs=1e-12)


async def test_by_hand():
    # N = 2, df = 1, both of length 2 = mean: ln(3) * (1 + 2.5 / (1.5 + 1)) = 2 ln 3.
    library = RankBM25([Passage("a", "red fox"), Passage("b", "blue fox")])
    [[best]] = await library.search(["red"], 5)
    assert best.id == "a"
    assert best.score == pytest.approx(2 * math.log(3))


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("uvwxyz"), min_size=1, max_size=6), min_size=1, max_size=8),
    st.lists(st.sampled_from("uvwxyzq"), max_size=4),
    st.integers(1, 9),
)
def test_the_best_k_in_order_with_ties_by_id(texts, query, k):
    passages = [Passage(f"{i:02d}", " ".join(words)) for i, words in enumerate(texts)]
    expected = by_formula(" ".join(query), passages)
    order = sorted((name for name in expected if expected[name] > 0), key=lambda name: name)
    order.sort(key=lambda name: -round(expected[name], 9))
    found = RankBM25(reversed(passages))._find(" ".join(query), k)
    assert [p.id for p in found] == order[:k]


async def test_ties_are_ordered_by_id_whatever_the_order_given():
    passages = [Passage(i, "same words") for i in ("c", "a", "b")]
    for order in (passages, passages[::-1]):
        [found] = await RankBM25(order).search(["words"], 2)
        assert [p.id for p in found] == ["a", "b"]


async def test_many_ties_stay_in_order():
    passages = [Passage(f"{i:03d}", "one two" if i % 3 else "one three") for i in range(300)]
    [found] = await RankBM25(passages).search(["one"], 300)
    assert [p.id for p in found] == [f"{i:03d}" for i in range(300)]
    [found] = await RankBM25(passages).search(["three"], 300)
    assert [p.id for p in found] == [f"{i:03d}" for i in range(0, 300, 3)]


async def test_a_title_counts_as_text():
    about, mention = Passage("z", "likes Bob", title="Ann"), Passage("a", "Ann", title="Bob likes")
    [found] = await RankBM25([about, mention]).search(["ann"], 2)
    assert {p.id for p in found} == {"a", "z"}
    [found] = await RankBM25(
        [Passage("1", "friend of Ann is Bob", "Ann"), Passage("2", "friend of Bob is Ann", "Bob")]
    ).search(["friend of Bob"], 1)
    assert found[0].id == "2"


async def test_queries_are_answered_each_and_unknown_words_find_nothing():
    library = RankBM25(ANIMALS)
    found = await library.search(["fish", "unicorn", "the and of", ""], 3)
    assert [[p.id for p in passages] for passages in found] == [["4"], [], [], []]
    assert await library.search([], 3) == []
    assert len(library) == 4


def test_words_without_case_possessives_and_stop_words():
    assert tokenize("The Fox's den, and the fox’s tail!") == ["fox", "den", "fox", "tail"]


SCRIPTS = {
    "chinese": "北京是中国的首都",
    "japanese": "東京タワーは日本の首都にあります。ジョン・スミス",
    "kana": "ﾃｽﾄと か\u3099くせい",  # half-width, and decomposed
    "korean": "서울은 대한민국의 수도이다",
    "thai": "กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย ๒๕๖๗",
    "lao": "ວຽງຈັນເປັນນະຄອນຫຼວງຂອງລາວ",
    "khmer": "ភ្នំពេញជារាជធានីនៃកម្ពុជា។",
    "burmese": "နေပြည်တော်သည်မြန်မာနိုင်ငံ၏မြို့တော်ဖြစ်သည်။",
    "mixed": "我的iPhone15手机在2024年坏了",
    "rare": "\U00020bb7野家",
    "english": "the capital of France is Paris",
}


@pytest.mark.parametrize(
    ("query", "best"),
    [
        *(("北京", "chinese"), ("中国的首都在哪里？", "chinese"), ("国", "chinese")),
        *(("東京", "japanese"), ("スミス", "japanese"), ("ｼﾞｮﾝ", "japanese"), ("日本", "japanese")),
        *(("テスト", "kana"), ("がくせい", "kana"), ("대한민국", "korean"), ("수도", "korean")),
        *(("เมืองหลวง", "thai"), ("๒๕๖๗", "thai"), ("ไทย", "thai"), ("ລາວ", "lao")),
        *(("ນະຄອນ", "lao"), ("កម្ពុជា", "khmer"), ("မြန်မာ", "burmese"), ("မြို့တော်", "burmese")),
        *(("iphone15", "mixed"), ("2024", "mixed"), ("手机", "mixed"), ("\U00020bb7", "rare")),
        *(("Paris", "english"), ("上海", None), ("15", None), ("par", None), ("。・", None)),
    ],
)
async def test_words_of_scripts_without_spaces_are_found(query, best, scripts_index):
    small = RankBM25([Passage(*item) for item in SCRIPTS.items()], absent_terms=True)
    for library in (small, scripts_index):
        [found] = await library.search([query], 1)
        assert [p.id for p in found] == [best][: best is not None]


@pytest.fixture(scope="module")
def scripts_index(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scripts") / "index"
    index_passages((Passage(*item) for item in SCRIPTS.items()), folder)
    return BM25(folder)


def test_pairs_of_characters_are_terms_and_passages_have_single_ones_too():
    assert tokenize("北京是") == ["北京", "京是"]
    assert tokenize("北京是", characters=True) == ["北", "京", "是", "北京", "京是"]
    assert tokenize("Café’s 水, Straße 3.5") == ["café", "水", "straße", "3", "5"]


def test_a_library_must_be_able_to_answer():
    with pytest.raises(ValueError, match="no passage with a word"):
        RankBM25([])
    with pytest.raises(ValueError, match="no passage with a word"):
        RankBM25([Passage("1", "of the")])
    with pytest.raises(ValueError, match="passage id '1' is used more than once"):
        RankBM25([Passage("1", "a fox"), Passage("1", "a dog")])


async def test_k_is_at_least_one():
    with pytest.raises(ValueError, match=r"k \(0\) must be >= 1"):
        await RankBM25(ANIMALS).search(["dog"], 0)


async def test_search_tool_shows_titles_and_texts():
    pages = [
        Passage("1", "A dog sleeps.", "Dogs"),
        Passage("2", "A dog barks when all others sleep."),
    ]
    shown = await search_tool(RankBM25(pages))({"query": "dog"})
    assert shown.text == '"Dogs"\nA dog sleeps.\n\nA dog barks when all others sleep.'
    bare = await search_tool(RankBM25(pages), titles=False)({"query": "dog"})
    assert bare.text == "A dog sleeps.\n\nA dog barks when all others sleep."
    assert [row["title"] for row in bare.data] == ["", ""]


async def test_search_tool_leaves_a_blank_line_between_passages():
    search = tools.make("search", retriever=RankBM25(ANIMALS), top_n=2)
    result = await search({"query": "dog"})
    assert result.text == "a dog sleeps\n\nfoxes and dogs and a dog"
    assert [p["id"] for p in result.data] == ["2", "3"]
    assert (await search({"query": "unicorn"})).text == NOTHING_FOUND
    assert (await search({"query": "  "})).error == "the query is empty"
    assert list(search.parameters["properties"]) == ["query"]
    with pytest.raises(ValueError, match=r"top_n \(0\)"):
        search_tool(RankBM25(ANIMALS), top_n=0)
