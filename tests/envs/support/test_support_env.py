"""support-v0: what a customer gets is judged by the database, and by what was said."""

from __future__ import annotations

import json

import numpy as np
import pytest

import envs
from envs.datasets.generated import split_of
from envs.support.customer import ScriptedCustomer
from envs.support.desk import tools_of
from envs.support.outcome import broken_rule, expected_shop, said_amounts
from envs.support.rules import KINDS
from envs.support.shop import Order, Shop
from envs.support.task import SupportTask, Wish

STOCK = {"mug": {"red": 38, "blue": 41}}
LEVELS = [
    {},
    {"requests": "all"},
    {"level": 2, "requests": "all"},
    {"level": 3, "requests": "all", "max_turns": 24},
    {"level": 2, "requests": "return, exchange", "syntax": "chat"},
]
ROLE = {"level": 3, "requests": "all", "max_turns": 40, "customer": "role"}


def order(status="pending", days=0, paid_by="card", name="Ada"):
    return Order("417", name, "mug", "red", 38, paid_by, "5 Elm Street", status, days)


def task(kind, found, detail=""):
    return SupportTask(Shop({"417": found}, STOCK), "Ada", (Wish(kind, "417", detail),))


def call(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def play(env, policy, index):
    observation, _ = env.reset(seed=index, options={"task": index})
    while True:
        result = env.step(policy(observation))
        if result.done:
            return result
        observation = result.observation


@pytest.mark.parametrize(
    ("kind", "found", "detail", "rule"),
    [
        ("cancel", order(), "", 0),
        ("cancel", order("shipped"), "", 1),
        ("return", order("pending"), "card", 2),
        ("return", order("delivered", 30), "card", 0),
        ("return", order("delivered", 31), "card", 3),
        ("return", order("delivered", 3, "voucher"), "card", 4),
        ("return", order("delivered", 3, "voucher"), "voucher", 0),
        ("exchange", order("cancelled"), "blue", 2),
        ("exchange", order("delivered", 40), "blue", 3),
        ("exchange", order("delivered", 4), "green", 5),
        ("exchange", order("delivered", 4), "blue", 0),
        ("address", order("shipped"), "1 Oak Road", 6),
        ("address", order(), "1 Oak Road", 0),
        ("price", order("shipped"), "", 0),
        ("price", order("shipped", name="Ben"), "", 7),
    ],
)
def test_a_request_breaks_the_rule_that_the_policy_states(kind, found, detail, rule):
    wanted = task(kind, found, detail)
    assert broken_rule(wanted, wanted.wishes[0], level=3) == rule
    assert expected_shop(wanted, level=3).refusals == ({"417": rule} if rule else {})


@pytest.mark.parametrize(
    ("kind", "found", "detail", "called", "amount"),
    [
        ("cancel", order(), "", ("cancel_order", {}), 38),
        (
            *("return", order("delivered", 3), "voucher"),
            *(("return_order", {"refund_to": "voucher"}), 38),
        ),
        ("exchange", order("delivered", 3), "blue", ("exchange_order", {"colour": "blue"}), 3),
        ("address", order(), "1 Oak Road", ("change_address", {"address": "1 Oak Road"}), None),
    ],
)
def test_the_right_call_leads_to_the_database_that_the_task_expects(
    kind, found, detail, called, amount
):
    wanted = task(kind, found, detail)
    shop, (name, more) = wanted.shop.copy(), called
    assert tools_of(KINDS)[name].call(shop, {"order": "417", **more}).error is None
    assert shop == expected_shop(wanted, level=3) != wanted.shop
    assert said_amounts(wanted, 3, []) == (amount is None)
    if amount is not None:
        assert said_amounts(wanted, 3, [f"The amount is ${amount}."])
        every = " ".join(f"${number}" for number in range(100))
        assert not said_amounts(wanted, 3, [every])


def test_a_wrong_call_changes_nothing_and_says_what_is_wrong():
    shop, tools = Shop({"417": order()}, STOCK), tools_of(KINDS)
    before = shop.copy()
    assert tools["cancel_order"].call(shop, {"order": "1"}).error == "there is no order 1"
    assert tools["cancel_order"].call(shop, {}).error == "cancel_order takes order"
    assert tools["refuse"].call(shop, {"order": "417", "rule": "x"}).error == "there is no rule x"
    assert shop == before


def test_the_customer_reveals_only_what_is_asked():
    customer = ScriptedCustomer(task("return", order("delivered", 3), "voucher"), level=2)
    assert customer.opening() == "I want to return an order."
    assert customer.reply("What is the order's number?") == "It is order 417."
    assert customer.reply("Your name, please.") == "My name is Ada."
    assert customer.reply("Card or voucher?") == "Refund it to my voucher."
    assert customer.reply("How are you?") == "I want to return an order."
    assert customer.reply("Do you confirm the refund to your card?") == "Yes."
    assert customer.reply("It is done.") is None


@pytest.mark.parametrize("options", LEVELS)
def test_the_gold_policy_serves_every_customer(options):
    env = envs.make("support", **options)
    for index in range(15):
        assert play(env, env.gold_policy(), index).rewards == {"resolved": 1.0}


def test_a_role_plays_the_customer_and_the_agent_earns_the_reward():
    env, earned = envs.make("support", **ROLE), []
    for index in range(15):
        result = play(env, env.demonstrator(np.random.default_rng(index)), index)
        assert env.role == "customer"
        earned.append(result.rewards["agent/resolved"])
        assert result.rewards == {"agent/resolved": result.info["scores"]["resolved"]}
    assert 0 < sum(earned) < 15
    with pytest.raises(NotImplementedError, match="customer='role' has no gold_policy"):
        env.gold_policy()


def test_idle_and_over_eager_policies_earn_nothing_where_a_refusal_is_right():
    env = envs.make("support", level=1, requests="cancel")
    refused = 0
    for index in range(40):
        env.reset(seed=0, options={"task": index})
        wanted = env.state.task
        number = wanted.wishes[0].order
        assert env.step("Done.").reward == 0.0
        env.reset(seed=0, options={"task": index})
        env.step(call("cancel_order", order=number))
        allowed = broken_rule(wanted, wanted.wishes[0], 1) == 0
        assert env.step("Done.").reward == float(allowed)
        refused += not allowed
    assert 8 <= refused <= 24


def test_a_change_without_the_customers_yes_earns_nothing():
    env = envs.make("support", level=3, requests="cancel", max_turns=24)
    gold = env.gold_policy()
    observation, _ = env.reset(seed=0, options={"task": 0})
    while True:
        action = gold(observation)
        result = env.step(action)
        if result.done:
            break
        if "?" in action and "confirm" in action:
            env.state.confirmed = False  # As if the customer had answered no.
        observation = result.observation
    changes = sum(not broken_rule(env.state.task, w, 3) for w in env.state.task.wishes)
    assert result.reward == float(changes == 0)
    assert result.info["scores"]["database"] == 1.0


def test_tasks_of_two_splits_are_disjoint():
    for split in ("train", "validation", "test"):
        tasks = envs.make("support", split=split).tasks
        assert {split_of(tasks[i].key) for i in range(30)} == {split}


def test_unreadable_calls_end_the_episode():
    env = envs.make("support")
    env.reset(seed=0)
    for _ in range(2):
        assert not env.step("<tool_call>x</tool_call>").done
    assert env.step(call("fly", to="Rome")).info["stop_reason"] == "invalid_actions"


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"level": 4}, "level"),
        ({"requests": "fly"}, "requests"),
        ({"customer": "me"}, "customer"),
        ({"syntax": "xml"}, "syntax"),
    ],
)
def test_wrong_options_are_refused(options, wrong):
    with pytest.raises(ValueError, match=wrong):
        envs.make("support", **options)


@pytest.mark.parametrize("options", [LEVELS[0], LEVELS[3]])
def test_it_keeps_the_contract(options):
    assert envs.check_env(envs.make("support", **options)).env_id == "support-v0"


def test_a_fork_in_the_middle_of_a_conversation_ends_as_its_original():
    env = envs.make("support", **ROLE)
    env.reset(seed=3, options={"task": 3})
    asked = "What is the order's number?"
    assert env.step(asked).observation == asked
    assert env.role == "customer"
    assert "You wrote first" in env.system_prompt
    twin = env.fork()
    answers = [copy.step("It is order 999.").observation for copy in (env, twin)]
    assert answers == ["It is order 999."] * 2
    assert (env.role, env.stop, env.system_prompt) == (twin.role, twin.stop, twin.system_prompt)
    assert "You are the support" in env.system_prompt
