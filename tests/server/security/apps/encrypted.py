"""An app whose arguments and results nobody on the way can read; `make_app` gives it with other keys or none."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from holdfast import Holdfast, Keys, Retry, current


async def greet(name: str, password: str) -> str:
    return f"{name}:{password}"


def greet_in_thread(name: str, password: str) -> str:
    return f"{name}:{password}"


def charge(card: str) -> str:
    return current().once("charge", lambda: f"charged {card}")


async def nothing() -> None:
    """Returns what most tasks return."""


def nothing_in_thread() -> None:
    """The same in a thread."""


async def nothing_in_block() -> None:
    async with current().transaction() as conn:
        await conn.execute("SELECT 1")


async def repaired(path: str, password: str) -> str:
    """Says how far it is, and fails until somebody makes the file."""
    current().progress(1, 2, "half way")
    logging.getLogger(__name__).warning("looking for the file")
    if not Path(path).exists():
        raise FileNotFoundError(path)
    return f"found:{password}"


SIGNING = {"s1": b"s" * 32}
ENCRYPTION = {"e1": b"e" * 32}


def make_app(
    url: str | None = None, signing: dict[str, Any] | None = None, encryption: dict[str, Any] | None = None
) -> Holdfast:
    app = Holdfast(
        url,
        lease="2s",
        retry=Retry(max_attempts=2, base="10ms", cap="20ms"),
        signing=None if signing is None else Keys(signing),
        encryption=None if encryption is None else Keys(encryption),
    )
    for function in (greet, greet_in_thread, charge, nothing, nothing_in_thread, nothing_in_block, repaired):
        app.task(name=function.__name__)(function)
    app.every("1s", name="firing", args=["occurrence", "canary-5c1d"])(app.task_types["greet"])
    return app


app = make_app(signing=SIGNING, encryption=ENCRYPTION)
encrypting = make_app(encryption=ENCRYPTION)
plain = make_app()
