"""A hook as projects with tenants have it."""

from __future__ import annotations

from typing import Any


def add_tenant(call: Any) -> None:
    call.add_headers({"tenant": "acme", "about": call.type.rpartition(".")[2]})


async def not_a_hook(call: Any) -> None: ...
