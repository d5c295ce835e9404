"""What each figure should reach, a table a store; the scenarios only measure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from holdfast.bench.figures import Figure, Target, at_least, at_most

_EVERYWHERE: Final = {
    "pickup_p50": at_most(2),
    "pickup_p99": at_most(10),
    "priority_aged_p99": at_most(100),
    "priority_strict_p99": at_most(100),
    "unknown_types_share": at_least(80),
    "due_earliest": at_least(0),
    "due_p99": at_most(250),
    "drain_large_share": at_least(80),
    "promote_large_share": at_least(80),
    "reserve_delayed_share": at_least(80),
    "idle_cpu": at_most(1),
    "server_drain": at_least(12_000),
    "server_crowd_cpu": at_most(5),
    "server_crowd_calls": at_most(50),
    "server_crowd_p99": at_most(100),
}
#: By the scheme of the store's URL.
TARGETS: Final[Mapping[str, Mapping[str, Target]]] = {
    "sqlite": {
        **_EVERYWHERE,
        "drain": at_least(30_000),
        "drain_share": at_least(25),
        "enqueue_bulk": at_least(60_000),
    },
    "redis": {
        **_EVERYWHERE,
        "drain": at_least(20_000),
        "drain_share": at_least(40),
        "enqueue_one_sync": at_least(6_000),
        "enqueue_bulk": at_least(50_000),
    },
    "redis+cluster": {**_EVERYWHERE, "drain_beside_share": at_least(50), "drain_spread_share": at_least(50)},
    "postgresql": {
        **_EVERYWHERE,
        "held_share": at_least(70),
        "held_tasks": at_least(100_000),
        "pickup_p50": at_most(5),
        "pickup_p99": at_most(20),
        "drain": at_least(20_000),
        "drain_share": at_least(40),
        "enqueue_bulk": at_least(50_000),
    },
}


def with_targets(figures: Iterable[Figure], scheme: str) -> list[Figure]:
    """The figures, each with the target that it has on this kind of store."""
    targets = TARGETS.get(scheme, {})
    return [msgspec.structs.replace(figure, target=targets.get(figure.name)) for figure in figures]
