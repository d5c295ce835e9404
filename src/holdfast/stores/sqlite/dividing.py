"""The partition map: kept, replaced by the one that follows it, and compared with the version of each call."""

from __future__ import annotations

import msgspec

from holdfast.core.partitions import PartitionMap
from holdfast.errors import StaleMap
from holdfast.stores.single import stale_map
from holdfast.stores.sqlite.transaction import Transaction

_decoder = msgspec.json.Decoder(PartitionMap)


def partition_map(transaction: Transaction) -> PartitionMap:
    """The map, or the one of a store that was never divided."""
    text = transaction.value("partition_map")
    return PartitionMap() if text is None else _decoder.decode(text)


def put_partition_map(transaction: Transaction, new: PartitionMap) -> PartitionMap:
    """Replaces the map by the one that follows it."""
    current = partition_map(transaction)
    if new == current:
        return current
    if not new.follows(current):
        raise StaleMap(f"version {new.version} of the partition map does not follow version {current.version}")
    transaction.run("put_partition_map", {"version": new.version, "map": msgspec.json.encode(new)})
    return new


def check_map(transaction: Transaction, version: int, url: str) -> None:
    """Refuses a call that was routed by an older map."""
    current = transaction.value("map_version") or 0
    if current > version:
        raise stale_map(url, current)
