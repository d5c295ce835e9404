"""Tasks with steps that are done once; each step leaves a line in a file."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from holdfast import Holdfast, Retry, current

QUICK = Retry(max_attempts=5, base="10ms", cap="20ms")


def line(path: str, text: str) -> str:
    """The effect that must not be repeated."""
    with Path(path).open("a") as file:
        file.write(f"{text}\n")
    return f"receipt of {text} by attempt {current().attempt}"


async def line_async(path: str, text: str) -> str:
    return line(path, text)


def line_and_death(path: str, text: str) -> str:
    receipt = line(path, text)
    if current().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return receipt


async def pays(path: str, failures: int) -> str:
    """Fails this many times after its step."""
    receipt = await current().once(f"pay-{current().task_id}", line_async, path, "payment")
    if current().attempt <= failures:
        raise RuntimeError("after the step")
    return receipt


def pays_in_thread(path: str, failures: int) -> str:
    receipt = current().once(f"pay-{current().task_id}", line, path, text="payment")
    if current().attempt <= failures:
        raise RuntimeError("after the step")
    return receipt


async def shares(path: str, key: str) -> str:
    return await current().once(key, line_async, path, "shared")


def shares_in_thread(path: str, key: str) -> str:
    return current().once(key, line, path, "shared")


def dies_after_its_step(path: str) -> str:
    receipt = current().once(f"pay-{current().task_id}", line, path, "payment")
    if current().attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return receipt


def dies_in_its_step(path: str) -> str:
    return current().once(f"pay-{current().task_id}", line_and_death, path, "payment")


def make_app(url: str | None = None) -> Holdfast:
    """The app on this store, or on that of HOLDFAST_URL."""
    made = Holdfast(url, lease="2s")
    for function in (pays, pays_in_thread, shares, shares_in_thread, dies_after_its_step, dies_in_its_step):
        made.task(name=function.__name__, retry=QUICK)(function)
    return made


app = make_app()
