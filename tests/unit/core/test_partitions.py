from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.ids import MAX_PARTITION
from holdfast.core.partitions import PartitionMap
from holdfast.errors import BadOption

EIGHT = PartitionMap(shards=tuple(f"shard-{number}" for number in range(8)))
texts = st.text(min_size=1, max_size=30)


@given(texts, texts)
def test_the_smallest_map_has_one_partition_for_all(queue: str, key: str) -> None:
    assert PartitionMap().partition_for(queue, key) == 0


@given(texts, texts, st.integers(1, 8))
def test_a_key_always_meets_its_first_in_one_of_the_queues_partitions(queue: str, key: str, width: int) -> None:
    spread = EIGHT.with_spread(queue, width)
    partitions = spread.partitions(queue)
    assert len(set(partitions)) == len(partitions) == width
    assert spread.partition_for(queue, key) == spread.partition_for(queue, key)
    assert spread.partition_for(queue, key) in partitions


@given(texts)
def test_spreading_a_queue_keeps_the_partitions_it_had(queue: str) -> None:
    previous: tuple[int, ...] = ()
    for width in range(1, 9):
        partitions = EIGHT.with_spread(queue, width).partitions(queue)
        assert partitions[: len(previous)] == previous
        previous = partitions


def test_a_spread_queue_uses_all_its_partitions() -> None:
    wide = EIGHT.with_spread("hot", 8)
    used = {wide.partition_for("hot", f"order-{number}") for number in range(1_000)}
    assert used == set(range(8))


def test_every_change_is_a_new_version_and_the_old_map_stays_as_it_was() -> None:
    changed = EIGHT.with_spread("hot", 2).with_shards((*EIGHT.shards, "shard-8"))
    assert (EIGHT.version, changed.version) == (1, 3)
    assert EIGHT.spread == {}
    assert changed.shard(8) == "shard-8"


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
