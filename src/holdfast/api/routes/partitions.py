"""Partitions."""

from __future__ import annotations

from msgspec.structs import asdict

from holdfast.admin.partitions import partition_table
from holdfast.api.guard import Rule, Scope
from holdfast.api.routing import Call, Routes
from holdfast.wire.operator_views import PartitionsView, PartitionView

routes = Routes("partitions")


@routes.add("GET", "/v1/partitions", Rule((Scope.READ,)), gives=PartitionsView)
async def list_partitions(call: Call) -> PartitionsView:
    """Every partition: who keeps it, who looks after it, how deep it is."""
    store = call.gateway.store
    rows = [PartitionView(**asdict(row)) for row in await partition_table(store)]
    return PartitionsView(version=(await store.partition_map()).version, partitions=rows)
