"""Partitions over the masters of a cluster: one store, the whole kit."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock
from holdfast.testing.kit.conformance import CASES, run_case
from holdfast.testing.kit.conformance.registry import Case
from tests.servers.shared import shared_cluster
from tests.stores.sampling import sampled


@pytest.fixture(scope="module", autouse=True)
def _whole_cluster() -> None:
    """Whatever earlier tests did to the cluster, it is whole now."""
    shared_cluster("redis").heal()


class PartitionedClusterHarness:
    """Three partitions with a prefix of their own."""

    persistent = True

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self._prefix = f"kit-{secrets.token_hex(6)}"

    async def open(self) -> Store:
        return open_store(f"{shared_cluster('redis').url}?partitions=3&prefix={self._prefix}", clock=self.clock)

    async def destroy(self) -> None:
        shared_cluster("redis").flush()


@pytest.mark.parametrize("case", sampled(CASES, first=5))
def test_promise_is_kept_over_the_partitions_of_a_cluster(case: Case) -> None:
    asyncio.run(run_case(case, PartitionedClusterHarness))
