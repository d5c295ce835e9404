from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.fairness import MAX_WEIGHT, QueueShare, StrictOrder, WeightedOrder, parse_queues, queue_order
from holdfast.errors import BadName, BadOption

WEIGHTS = [("high", 5), ("default", 2), ("low", 1)]


def test_strict_order_offers_everything_to_everyone_in_order() -> None:
    assert StrictOrder(["high", "low"]).shares(7) == [QueueShare("high", 7), QueueShare("low", 7)]


@pytest.mark.parametrize("slots", [1, 2, 3, 7, 8, 50])
def test_weights_are_the_shares_in_the_long_run_whatever_the_number_of_free_slots(slots: int) -> None:
    order = WeightedOrder(WEIGHTS)
    rounds = 8_000 // slots
    given_out: Counter[str] = Counter()
    for _ in range(rounds):
        for share in order.shares(slots):
            given_out[share.queue] += share.limit
    total = rounds * slots
    assert sum(given_out.values()) == total
    for queue, weight in WEIGHTS:
        assert abs(given_out[queue] - total * weight / 8) <= len(WEIGHTS)


def test_one_slot_at_a_time_no_queue_waits_longer_than_a_round() -> None:
    order = WeightedOrder(WEIGHTS)
    first = [order.shares(1)[0].queue for _ in range(80)]
    for start in range(0, 80, 8):
        assert Counter(first[start : start + 8]) == Counter({"high": 5, "default": 2, "low": 1})


@given(
    st.lists(st.integers(1, MAX_WEIGHT), min_size=1, max_size=6),
    st.lists(st.integers(0, 60), min_size=1, max_size=10),
)
def test_slots_are_neither_lost_nor_invented_and_every_queue_is_looked_into(
    weights: list[int], rounds: list[int]
) -> None:
    order = WeightedOrder([(f"q{index}", weight) for index, weight in enumerate(weights)])
    for slots in rounds:
        shares = order.shares(slots)
        assert sum(share.limit for share in shares) == slots
        assert sorted(share.queue for share in shares) == sorted(order.queues)
        assert [share.limit for share in shares] == sorted((share.limit for share in shares), reverse=True)


def test_a_queue_list_is_strict_or_weighted_as_it_is_written() -> None:
    strict, weighted = parse_queues("high, low"), parse_queues("high=5,default=2,low=1")
    assert isinstance(strict, StrictOrder)
    assert strict.queues == ("high", "low")
    assert isinstance(weighted, WeightedOrder)
    assert weighted.weights == tuple(WEIGHTS)


def test_without_a_list_all_declared_queues_share_the_slots_evenly() -> None:
    assert queue_order("low,high", ["default"]).queues == ("low", "high")
    assert queue_order(None, []).queues == ("default",)
    order = queue_order(None, ["default", "mail"])
    given_out: Counter[str] = Counter()
    for _ in range(10):
        given_out.update(dict(order.shares(3)))
    assert given_out == {"default": 15, "mail": 15}


@pytest.mark.parametrize(
    "wrong", ["", " , ", "a,a", "a=1,a=2", "a=1,b", "a=", "a=0", "a=-1", "a=1.5", "a=x", "a=1001", "a=²", "a=1=2"]
)
def test_a_wrong_queue_list_is_refused_in_one_line(wrong: str) -> None:
    with pytest.raises(BadOption, match=r"^queues: ") as caught:
        parse_queues(wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("wrong", ["-a", "a b", "ä", "=5", "*maintenance"])
def test_a_wrong_queue_name_is_refused(wrong: str) -> None:
    with pytest.raises(BadName):
        parse_queues(wrong)
