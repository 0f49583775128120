"""The invented world: what its splits share and what they do not."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from envs.search.world import (
    ATTRIBUTES,
    DISTRACTORS,
    LINKS,
    NUM_TOWNS,
    SPLIT_SIZES,
    SearchTasks,
    World,
)
from tools.retrieval.tokenizer import STOP_WORDS, tokenize

SPLITS = tuple(SPLIT_SIZES)
NAME = re.compile(r"[A-Z][a-z]+")


@pytest.fixture(scope="module")
def world():
    return World(0)


def facts_used(world: World, split: str, hops: str) -> set[tuple[str, str]]:
    """(relation, person) of every fact that some question of the split needs."""
    used = set()
    tasks = SearchTasks(split, 0, hops)
    for index in range(len(tasks)):
        words = tasks[index].question.replace(".", "").split()
        assert words[:3] + words[4:6] == ["The", "person", "is", "Find", "the"]
        person, attribute = words[3], words[6]
        if len(words) > 7:
            link = words[9]
            used.add((link, person))
            person = world.facts[link, person]
        used.add((attribute, person))
        assert tasks[index].answers == (world.facts[attribute, person],)
    return used


def test_no_fact_is_needed_by_two_splits(world):
    used = {
        split: facts_used(world, split, "1") | facts_used(world, split, "2") for split in SPLITS
    }
    assert used["train"].isdisjoint(used["test"])
    assert used["train"].isdisjoint(used["validation"])
    assert used["test"].isdisjoint(used["validation"])
    asked = {person for _, person in used["test"]}
    assert asked == set(world.people["test"])


def test_every_fact_is_one_passage_that_a_search_can_find(world):
    passages = world.passages()
    assert len(passages) == sum(SPLIT_SIZES.values()) * (len(ATTRIBUTES) + len(LINKS)) == 7200
    assert len({passage.text for passage in passages}) == len(passages)
    texts = {passage.text for passage in passages}
    for (relation, person), value in world.facts.items():
        assert f"The {relation} of {person} is {value}." in texts
    assert [p.id for p in sorted(passages, key=lambda p: p.id)] != [p.id for p in passages]


def test_names_are_unique_and_are_not_words(world):
    people = [person for split in SPLITS for person in world.people[split]]
    names = [*people, *world.towns]
    assert len(world.towns) == NUM_TOWNS
    assert Counter(names).most_common(1)[0][1] == 1
    values = {word for name in ATTRIBUTES if name != "home" for word in world.inventory(name)}
    lowered = {name.lower() for name in names}
    assert lowered.isdisjoint(STOP_WORDS | values | {"year", *ATTRIBUTES, *LINKS, *DISTRACTORS})
    assert all(tokenize(name) == [name.lower()] and len(name) == 4 for name in names)


def test_no_person_is_their_own_friend_or_teacher(world):
    for split in SPLITS:
        members = set(world.people[split])
        for person in members:
            for link in LINKS:
                other = world.facts[link, person]
                assert other != person and other in members


def test_worlds_are_functions_of_the_seed():
    assert World(3).facts == World(3).facts
    assert World(3).passages() == World(3).passages()
    assert World(3).facts != World(4).facts


@pytest.mark.parametrize(
    ("hops", "counts"),
    [("1", (3200, 800, 800)), ("2", (6400, 1600, 1600)), ("mixed", (6400, 1600, 1600))],
)
def test_questions_are_distinct_and_as_many_as_said(hops, counts):
    for split, count in zip(SPLITS, counts, strict=True):
        tasks = SearchTasks(split, 0, hops)
        assert len(tasks) == count
        questions = {tasks[index].question for index in range(count)}
        assert len(questions) == count


def test_mixed_alternates_and_any_stretch_has_every_attribute():
    tasks = SearchTasks("test", 0, "mixed")
    first = [tasks[index] for index in range(128)]
    assert [task.hops for task in first] == [1, 2] * 64
    asked = Counter(task.question.rstrip(".").split()[6] for task in first)
    assert set(asked) == set(ATTRIBUTES) and min(asked.values()) >= 15


def test_a_task_is_a_function_of_split_index_and_seed():
    one, other = SearchTasks("test", 5, "mixed"), SearchTasks("test", 5, "mixed")
    assert [one[i] for i in (7, 3, 7)] == [other[i] for i in (7, 3, 7)]
    assert SearchTasks("test", 6, "mixed")[0] != one[0]
    with pytest.raises(IndexError):
        one[len(one)]
    assert all(len(NAME.findall(one[i].question)) == 3 for i in range(20)), "The, Find, one name"


def test_three_hops_go_through_two_people():
    tasks = SearchTasks("test", 0, "3")
    assert len(tasks) == 200 * 4 * 4
    world = World(0)
    for index in range(0, len(tasks), 7):
        words = tasks[index].question.replace(".", "").split()
        person, attribute, near, far = words[3], words[6], words[9], words[12]
        through = world.facts[near, world.facts[far, person]]
        assert tasks[index].answers == (world.facts[attribute, through],)
        assert tasks[index].hops == 3
    assert len({tasks[index].question for index in range(len(tasks))}) == len(tasks)


def test_a_comparison_is_won_by_the_elder_and_never_a_draw():
    tasks = SearchTasks("train", 0, "comparison")
    world = World(0, years=True)
    first_named = 0
    for index in range(800):
        one, other, attribute = re.match(
            r"The people are (\w+) and (\w+)\. Find the (\w+) of the elder\.", tasks[index].question
        ).groups()
        ages = [int(world.facts["year", person]) for person in (one, other)]
        assert ages[0] != ages[1]
        elder = one if ages[0] < ages[1] else other
        assert tasks[index].answers == (world.facts[attribute, elder],)
        first_named += elder == one
    # Four standard errors of 800 coins.
    assert abs(first_named - 400) < 4 * 200**0.5


def test_distractors_and_years_add_passages_and_change_no_fact(world):
    more = World(0, years=True, distractors=12)
    assert {key: more.facts[key] for key in world.facts} == world.facts
    assert len(more.passages()) == 1200 * (6 + 1 + 12)
    assert len({passage.text for passage in more.passages()}) == len(more.passages())
    relations = {relation for relation, _ in more.facts}
    assert relations - {relation for relation, _ in world.facts} == {"year", *DISTRACTORS}


def test_all_kinds_take_turns():
    tasks = SearchTasks("test", 0, "all")
    assert len(tasks) == 4 * 800
    assert [tasks[index].hops for index in range(8)] == [1, 2, 3, 3] * 2
    assert "elder" in tasks[3].question and "elder" not in tasks[2].question
