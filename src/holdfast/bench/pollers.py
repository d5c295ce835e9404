"""Plain HTTP clients that wait for work at a server, many of them in a process: `python -m holdfast.bench.pollers`.

It reads its `Crowd` from a line of stdin, writes a line when all of them wait and one for each task that is in their
hands, and ends with its stdin.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from typing import Any, Final

import msgspec

from holdfast.errors import StoreUnavailable
from holdfast.runtime import descriptors

#: They connect one after the other, a few at once.
_AT_ONCE: Final = 50


class Crowd(msgspec.Struct, frozen=True):
    """Who waits, where, for how long at a time."""

    port: int
    token: str
    queue: str
    count: int
    poll_s: float


class Said(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line of output: all of them wait, or one of them has got a task."""

    task_id: str | None = None
    at: float = 0.0


class Poller:
    """One client with one connection."""

    def __init__(self, crowd: Crowd, number: int) -> None:
        self._crowd = crowd
        self._worker_id = f"poller-{id(crowd):x}-{number}"
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def connect(self) -> None:
        """Opens the connection."""
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._crowd.port)

    def close(self) -> None:
        """Closes it."""
        self._writer.close()

    async def run(self) -> None:
        """Polls, tells of what it got, settles it, for ever."""
        wait_s = random.uniform(0, self._crowd.poll_s)  # noqa: S311  # once, so that they do not all come back at once
        while True:
            body = {"worker_id": self._worker_id, "queues": [self._crowd.queue], "wait": wait_s}
            answer = await self.post("/v1/reserve", body)
            for task in answer["tasks"]:
                _say(Said(task["task_id"], time.time()))
                await self.post(f"/v1/tasks/{task['task_id']}/ack", {"token": task["token"]})
            wait_s = self._crowd.poll_s

    async def post(self, path: str, body: object) -> Any:
        """The answer to a request."""
        data = msgspec.json.encode(body)
        self._writer.write(
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._crowd.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode()
            + data
        )
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        answer = await self._reader.readexactly(length)
        if head.split(b" ", 2)[1] != b"200":
            raise StoreUnavailable(f"{path}: {answer.decode(errors='replace')}")
        return msgspec.json.decode(answer)


async def run(crowd: Crowd) -> None:
    """Goes on until cancelled, or until one of them cannot."""
    descriptors.allow_many()
    pollers = [Poller(crowd, number) for number in range(crowd.count)]
    async with asyncio.TaskGroup() as group:
        for start in range(0, crowd.count, _AT_ONCE):
            some = pollers[start : start + _AT_ONCE]
            await asyncio.gather(*(poller.connect() for poller in some))
            for poller in some:
                group.create_task(poller.run())
        await asyncio.sleep(0)
        _say(Said())
        await asyncio.to_thread(sys.stdin.read)
        raise SystemExit


def _say(said: Said) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(said) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    try:
        asyncio.run(run(msgspec.json.decode(sys.stdin.readline(), type=Crowd)))
    except* (OSError, EOFError, StoreUnavailable) as failed:
        sys.exit(f"clients of the server: {failed.exceptions[0]}")
