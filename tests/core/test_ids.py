from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ids import (
    MAX_PARTITION,
    IdSource,
    check_task_id,
    created_at_ms,
    is_of_occurrence,
    occurrence_id,
    partition_of,
)
from holdfast.errors import UnknownTask


def source(now_ms: Callable[[], int] = lambda: 1_700_000_000_000) -> IdSource:
    return IdSource(now_ms, os.urandom)


def test_ids_of_one_producer_are_ordered_within_a_millisecond() -> None:
    ids = source()
    made = [ids.task_id() for _ in range(10_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


@given(st.lists(st.integers(0, 2**47), min_size=2, max_size=40))
def test_a_clock_that_jumps_back_does_not_break_the_order(times: list[int]) -> None:
    readings = iter(times)
    ids = source(lambda: next(readings))
    made = [ids.task_id() for _ in times]
    assert all(earlier < later for earlier, later in pairwise(made))


def test_the_counter_may_wrap_without_making_an_id_twice() -> None:
    ids = source()
    made = {ids.task_id() for _ in range(0x10000 + 10)}
    assert len(made) == 0x10000 + 10


def test_a_producer_never_makes_the_id_of_an_occurrence() -> None:
    ids = source()
    assert not any(is_of_occurrence(ids.task_id()) for _ in range(0x10000 + 10))
    assert is_of_occurrence(occurrence_id("nightly", 1_700_000_000_000, 3))


def test_the_id_of_an_occurrence_follows_from_its_schedule_time_and_partition() -> None:
    given = [("nightly", 1_000, 0), ("hourly", 1_000, 0), ("nightly", 2_000, 0), ("nightly", 1_000, 1)]
    made = [occurrence_id(*each) for each in given]
    assert len(set(made)) == len(made)
    assert made == [occurrence_id(*each) for each in given]
    assert [(created_at_ms(each), partition_of(each)) for each in made] == [
        (1_000, 0),
        (1_000, 0),
        (2_000, 0),
        (1_000, 1),
    ]
    # Two schedules that fire at the same moment differ in the last 12 digits only.
    assert made[0][-12:] != made[1][-12:]


@given(st.integers(0, MAX_PARTITION), st.integers(0, 2**48 - 1))
def test_an_id_carries_its_partition_and_its_time(partition: int, now_ms: int) -> None:
    task_id = source(lambda: now_ms).task_id(partition)
    assert (partition_of(task_id), created_at_ms(task_id)) == (partition, now_ms)
    assert check_task_id(task_id) == task_id


def test_no_randomness_is_kept_between_calls_so_a_fork_cannot_copy_it() -> None:
    asked: list[int] = []

    def random_bytes(count: int) -> bytes:
        asked.append(count)
        return os.urandom(count)

    ids = IdSource(lambda: 1, random_bytes)
    for calls in (1, 2, 3):
        ids.task_id()
        assert asked == [6] * calls


def test_two_processes_after_a_fork_make_different_ids() -> None:
    ids = source()
    ids.task_id()
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(sending, ids.task_id().encode())
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving) as pipe:
        from_child = pipe.read()
    os.waitpid(child, 0)
    assert check_task_id(from_child) != ids.task_id()


def test_claim_ids_are_128_random_bits() -> None:
    ids = source()
    made = {ids.claim_id() for _ in range(1_000)}
    assert len(made) == 1_000
    assert {len(claim_id) for claim_id in made} == {32}


@pytest.mark.parametrize(
    "wrong", ["", "1", "g" * 32, "A" * 32, "0" * 31, "0" * 33, "0" * 32 + "\n", " " + "0" * 31, None, 7, b"0" * 32]
)
def test_what_cannot_be_a_task_id_is_unknown(wrong: object) -> None:
    for look in (check_task_id, partition_of, created_at_ms):
        with pytest.raises(UnknownTask, match="is not a task_id") as caught:
            look(wrong)  # type: ignore[arg-type]
        assert "\n" not in str(caught.value)
