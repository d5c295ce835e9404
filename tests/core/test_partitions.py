from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ids import MAX_PARTITION
from holdfast.core.partitions import PartitionMap, first_map
from holdfast.errors import BadOption

EIGHT = first_map(tuple(f"shard-{number}" for number in range(8)))
texts = st.text(min_size=1, max_size=30)
widths = st.lists(st.integers(1, 8), max_size=6)
turns = st.integers(0, 1_000)


@given(texts, texts | st.none(), turns)
def test_the_smallest_map_has_one_partition_for_all(queue: str, request_id: str | None, turn: int) -> None:
    assert PartitionMap().partition_for(queue, request_id, turn) == 0


@given(texts, st.integers(1, 8))
def test_a_spread_queue_uses_all_its_partitions_by_turns(queue: str, width: int) -> None:
    spread = EIGHT.with_spread(queue, width)
    partitions = spread.partitions(queue)
    assert len(set(partitions)) == len(partitions) == width
    assert {spread.partition_for(queue, None, turn) for turn in range(width)} == set(partitions)


@given(texts, texts, widths, turns)
def test_a_request_id_meets_its_first_in_one_place_whatever_becomes_of_the_map(
    queue: str, request_id: str, changes: list[int], turn: int
) -> None:
    first = EIGHT.partition_for(queue, request_id, turn)
    current = EIGHT
    for width in changes:
        current = current.with_spread(queue, width)
    current = current.with_shards((*current.shards, "shard-8", "shard-9"))
    assert current.partition_for(queue, request_id, turn + 1) == first
    assert current.allows(queue, first, has_request_id=True)


@given(texts, widths, turns)
def test_where_a_task_was_put_is_looked_at_ever_after(queue: str, changes: list[int], turn: int) -> None:
    current, used = EIGHT, {EIGHT.partition_for(queue, None, turn)}
    for width in changes:
        current = current.with_spread(queue, width)
        used.add(current.partition_for(queue, None, turn))
    current = current.with_shards((*current.shards, "shard-8")).with_spread(queue, 1)
    assert used <= set(current.reach(queue))
    assert all(current.allows(queue, partition, has_request_id=False) for partition in used)
    assert set(current.partitions(queue)) <= set(current.reach(queue))


@given(texts)
def test_spreading_a_queue_keeps_the_partitions_it_had(queue: str) -> None:
    previous: tuple[int, ...] = ()
    for width in range(1, 9):
        partitions = EIGHT.with_spread(queue, width).partitions(queue)
        assert partitions[: len(previous)] == previous
        previous = partitions


@given(texts, st.integers(1, 8))
def test_added_partitions_move_no_queue(queue: str, width: int) -> None:
    before = EIGHT.with_spread(queue, width)
    after = before.with_shards((*before.shards, "shard-8"))
    assert after.partitions(queue) == before.partitions(queue)
    assert 8 in after.with_spread(queue, 9).partitions(queue)


def test_a_task_where_nobody_looks_for_it_is_not_allowed() -> None:
    home = EIGHT.partitions("hot")[0]
    wide = EIGHT.with_spread("hot", 2)
    other = wide.partitions("hot")[1]
    assert EIGHT.allows("hot", home, has_request_id=False)
    assert not EIGHT.allows("hot", other, has_request_id=False)
    assert wide.allows("hot", other, has_request_id=False)
    assert not wide.allows("hot", other, has_request_id=True)


def test_every_change_is_a_new_version_and_the_old_map_stays_as_it_was() -> None:
    changed = EIGHT.with_spread("hot", 2).with_shards((*EIGHT.shards, "shard-8"))
    assert (EIGHT.version, changed.version) == (1, 3)
    assert EIGHT.spread == {}
    assert changed.shard(8) == "shard-8"


def test_the_first_partition_takes_the_next_version_only_and_the_others_any_newer_one() -> None:
    two, three = EIGHT.with_spread("hot", 2), EIGHT.with_spread("hot", 2).with_spread("hot", 3)
    assert two.follows(EIGHT)
    assert not three.follows(EIGHT)
    assert not EIGHT.follows(two)
    assert three.copy_for(5).follows(EIGHT.copy_for(5))
    assert not EIGHT.copy_for(5).follows(three.copy_for(5))
    assert not two.copy_for(5).follows(two.copy_for(5))


def test_a_map_travels_as_json() -> None:
    wide = EIGHT.with_spread("hot", 3).copy_for(2)
    assert msgspec.json.decode(msgspec.json.encode(wide), type=PartitionMap) == wide


@pytest.mark.parametrize("width", [0, -1, 9])
def test_a_queue_cannot_be_wider_than_the_map(width: int) -> None:
    with pytest.raises(BadOption, match="1 to 8 partitions"):
        EIGHT.with_spread("hot", width)


def test_partitions_are_never_removed_and_never_more_than_an_id_can_carry() -> None:
    with pytest.raises(BadOption, match="cannot become"):
        EIGHT.with_shards(EIGHT.shards[:-1])
    with pytest.raises(BadOption, match="cannot become"):
        EIGHT.with_shards(("one",) * (MAX_PARTITION + 2))


@pytest.mark.parametrize("partition", [-1, 8])
def test_a_partition_outside_the_map_is_refused_with_the_version(partition: int) -> None:
    with pytest.raises(BadOption, match="version 1"):
        EIGHT.shard(partition)
