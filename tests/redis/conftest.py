"""The servers that these tests share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.servers.fixtures import (
    any_server,
    durable_server,
    flavour,
    redis_cluster,
    redis_sentinels,
    redis_server,
    valkey_server,
)

__all__ = [
    "any_server",
    "durable_server",
    "flavour",
    "redis_cluster",
    "redis_sentinels",
    "redis_server",
    "valkey_server",
]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks tests that kill a Valkey server as long: the same test on Redis guards the same code."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        of_ours = Path(__file__).parent in item.path.parents
        if of_ours and parameters.get("flavour") == "valkey" and item.get_closest_marker("alone"):
            item.add_marker(pytest.mark.long)
