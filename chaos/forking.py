"""A producer that forks after it has used its app: `python -m chaos.forking URL FILE FIRST_NUMBER`.

Parent and children go on to enqueue, some while a thread of the parent is in the middle of a call, and at last one
child goes on alone, as a daemon does. What each of them has sent, and what came back, is appended to the file.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from chaos.tasks import QUEUES, make_app, type_of
from holdfast import Holdfast

#: The numbers of one program.
NUMBERS: Final = 10_000
_CHILDREN: Final = 6
_ORDERS: Final = 40
_THREADS: Final = 2
_ORDERS_OF_A_THREAD: Final = 2_000
#: A child that has not ended by then hangs.
_CHILD_SECONDS: Final = 30.0
_DAEMON_ORDERS: Final = 150
_DAEMON_PAUSE_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the file: an order was sent, came back with a task, or failed; or the program has ended."""

    word: str
    number: int = 0
    text: str = ""


def main(url: str, path: str, first: int) -> None:
    """Runs it; the daemon is still running when this returns."""
    app, _ = make_app(url)
    numbers = iter(range(first, first + NUMBERS - _THREADS * _ORDERS_OF_A_THREAD))
    _send(app, path, [next(numbers) for _ in range(5)])
    stop = threading.Event()
    threads = [_in_thread(app, path, first + NUMBERS - each * _ORDERS_OF_A_THREAD, stop) for each in range(_THREADS)]
    for each in range(_CHILDREN):
        mine = [next(numbers) for _ in range(_ORDERS)]
        _in_child(path, _sending(app, path, mine, in_bulk=each % 2 == 1, closes=each % 3 == 0))
        _send(app, path, [next(numbers)])
    stop.set()
    for thread in threads:
        thread.join()
    rest = [next(numbers) for _ in range(_DAEMON_ORDERS)]
    if os.fork() == 0:
        _daemon(app, path, rest)
    os._exit(0)


def send_from_fork(app: Holdfast, path: str, first: int, count: int) -> None:
    """What a process does that a task has forked."""
    _send(app, path, list(range(first, first + count)))


def request_id_of(number: int) -> str:
    """By which an order of a forking producer is known."""
    return f"fork-{number}"


def lines_of(path: Path) -> Iterator[Line]:
    """What the processes have written so far."""
    for line in path.read_text(errors="replace").splitlines() if path.exists() else []:
        word, number, text = line.split(" ", 2)
        yield Line(word, int(number), text)


def _sending(app: Holdfast, path: str, numbers: list[int], *, in_bulk: bool, closes: bool) -> Callable[[], None]:
    def send() -> None:
        if in_bulk:
            asyncio.run(_send_in_bulk(app, path, numbers))
        else:
            _send(app, path, numbers)
        if closes:
            app.close()

    return send


def _in_child(path: str, work: Callable[[], None]) -> None:
    """Forks, and waits for the child; one that hangs is killed and told of."""
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    deadline = time.monotonic() + _CHILD_SECONDS
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        if time.monotonic() > deadline:
            os.kill(pid, 9)
            os.waitpid(pid, 0)
            _write(path, "failed", 0, f"a forked producer hung for {_CHILD_SECONDS:g} s")
            return
        time.sleep(0.01)


def _in_thread(app: Holdfast, path: str, last: int, stop: threading.Event) -> threading.Thread:
    def send() -> None:
        for number in range(last - _ORDERS_OF_A_THREAD, last):
            if stop.is_set():
                return
            _send(app, path, [number])

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def _daemon(app: Holdfast, path: str, numbers: list[int]) -> None:
    os.setsid()
    try:
        for number in numbers:
            _send(app, path, [number])
            time.sleep(_DAEMON_PAUSE_SECONDS)
        app.close()
    finally:
        _write(path, "end", 0, "")
        os._exit(0)


def _send(app: Holdfast, path: str, numbers: list[int]) -> None:
    for number in numbers:
        typed = type_of(app, "plain").using(queue=QUEUES[number % len(QUEUES)], request_id=request_id_of(number))
        _write(path, "sent", number, "")
        try:
            handle = typed.enqueue(number, "plain")
        except Exception as error:  # noqa: BLE001  (whatever it is, it is told of)
            _write(path, "failed", number, f"{type(error).__name__}: {error}")
        else:
            _write(path, "done", number, handle.task_id)


async def _send_in_bulk(app: Holdfast, path: str, numbers: list[int]) -> None:
    typed = type_of(app, "plain")
    for number in numbers:
        _write(path, "sent", number, "")
    prepared = [
        typed.using(queue=QUEUES[number % len(QUEUES)], request_id=request_id_of(number)).prepare(number, "plain")
        for number in numbers
    ]
    try:
        handles = await app.aenqueue_many(prepared)
    except Exception as error:  # noqa: BLE001
        _write(path, "failed", numbers[0], f"{type(error).__name__}: {error}")
        return
    for number, handle in zip(numbers, handles, strict=True):
        _write(path, "done", number, handle.task_id)


def _write(path: str, word: str, number: int, text: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, f"{word} {number} {' '.join(text.split())}\n".encode())
    finally:
        os.close(file)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
