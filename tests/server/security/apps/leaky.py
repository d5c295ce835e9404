"""An app whose tasks say their password wherever they can: in log lines, in a thread, in the error that they end by."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

from holdfast import Holdfast, Retry, current

app = Holdfast(traces="child", retry=Retry(max_attempts=1))
_log = logging.getLogger("shop.auth")


def say_all(password: str) -> None:
    current().log.info("password=%s", password)
    current().progress(1, 2, note=f"token: {password}")
    _log.info("Authorization: Bearer %s", password)
    _log.warning("from https://ann:%s@shop.example/?access_token=%s", password, password)
    _log.error("%d of '%s'", f"secret={password}", f"secret={password}")
    try:
        raise KeyError(f"api_key={password}")
    except KeyError:
        _log.exception("could not log in", stack_info=True, extra={"password": password})
    thread = threading.Thread(target=fail, args=(password,), name="side")
    thread.start()
    thread.join()


def fail(password: str) -> None:
    raise ValueError(f"password: '{password}' is refused by postgresql://app:{password}@db/shop")


@app.task(name="in_thread")
def in_thread(password: str) -> None:
    say_all(password)
    fail(password)


@app.task(name="in_loop")
async def in_loop(password: str) -> None:
    say_all(password)
    fail(password)


@app.lifespan
async def traced() -> AsyncIterator[None]:
    from tests.observe.spans import write_spans

    write_spans(Path(os.environ["SPANS"]))
    yield
