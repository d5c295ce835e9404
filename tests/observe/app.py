"""An app for the tests of metrics and traces; its spans go into the file that SPANS names, if it does."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncIterator
from pathlib import Path

from holdfast import Cancel, Holdfast, Retry, Snooze, current

app = Holdfast(traces="child" if os.environ.get("BELOW") else "link")
_log = logging.getLogger("tests.observe")
CANARY = "canary-7f3a"


@app.task(name="quick")
async def quick(number: int) -> int:
    return number


@app.task(name="parent", queue="mails")
def parent(number: int) -> str:
    current().log.info("a line of the task")
    _log.info("a line of somebody else")
    return quick.enqueue(number).task_id


@app.task(name="fails", retry=Retry(max_attempts=2, base="0.05s"))
def fails(secret: str) -> None:
    raise ValueError(f"{CANARY} {secret}")


@app.task(name="later")
async def later() -> Snooze | None:
    return Snooze("0.05s") if current().fencing_token == 1 else None


@app.task(name="stops")
async def stops() -> Cancel:
    return Cancel("enough")


@app.task(name="dies", retry=Retry(max_attempts=1))
def dies() -> None:
    os._exit(9)


@app.lifespan
async def traced() -> AsyncIterator[None]:
    target = os.environ.get("SPANS")
    if target is not None:
        from tests.observe.spans import write_spans

        write_spans(Path(target))
    yield
