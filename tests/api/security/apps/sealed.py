"""An app whose arguments and results nobody on the way can read; `make_app` gives it with other keys or none."""

from __future__ import annotations

from typing import Any

from holdfast import Holdfast, Keys, Retry, current


async def greet(name: str, password: str) -> str:
    return f"{name}:{password}"


def greet_in_thread(name: str, password: str) -> str:
    return f"{name}:{password}"


def charge(card: str) -> str:
    return current().once("charge", lambda: f"charged {card}")


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
    for function in (greet, greet_in_thread, charge):
        app.task(name=function.__name__)(function)
    app.every("1s", name="ticking", args=["tick", "canary-5c1d"])(app.task_types["greet"])
    return app


app = make_app(signing=SIGNING, encryption=ENCRYPTION)
