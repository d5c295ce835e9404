"""The load: producers and the stale settler on an event loop in a thread of its own, while faults strike."""

from __future__ import annotations

import asyncio
import threading

from chaos.journal import Journal
from chaos.producers import Producers
from chaos.stale_settler import StaleSettler
from holdfast.stores.open import open_store

_JOIN_SECONDS = 120.0


class Load:
    """Begins with `start` and ends with `finish`; the claims of its settler outlive it."""

    def __init__(self, url: str, journal: Journal, per_second: int, settler: StaleSettler) -> None:
        self._url = url
        self._journal = journal
        self._per_second = per_second
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._error: BaseException | None = None
        self._settler = settler
        self._thread = threading.Thread(target=self._run, name="chaos-load", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def finish(self) -> None:
        """Stops and waits for what is under way; raises what went wrong inside."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(_JOIN_SECONDS)
        if self._error is not None:
            raise self._error
        if self._thread.is_alive():
            raise RuntimeError(f"the producers did not end within {_JOIN_SECONDS:g} s")

    @property
    def broken(self) -> BaseException | None:
        """What ended it before its time."""
        return self._error

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._all())
            except BaseException as error:  # noqa: BLE001  (handed to the thread that waits)
                self._error = error

    async def _all(self) -> None:
        store = open_store(self._url)
        producers = Producers(self._url, self._journal, self._per_second)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(producers.run(self._stop))
                group.create_task(self._settler.run(store, self._stop))
        finally:
            await store.close()
