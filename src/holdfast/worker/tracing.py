"""A span around every run, where the process has set up tracing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

from holdfast.core.lifecycle import Change
from holdfast.observe.runs import outcome_of
from holdfast.observe.tracing import Processing, conclude, provider
from holdfast.worker.loading import App
from holdfast.worker.run import Run

#: How long the last spans of a process may take to get out of it.
FLUSH_S: Final = 1.0


class Tracing:
    """Surrounds what performs a run; without a provider it leaves everything as it is."""

    def __init__(self, processing: Processing | None) -> None:
        self._processing = processing

    @classmethod
    def of(cls, app: App, worker_id: str) -> Tracing:
        """As the app has set it up by now."""
        found = provider()
        if found is None:
            return cls(None)
        return cls(Processing(found, worker_id, below=getattr(app, "traces", "link") == "child"))

    def coroutine(
        self, perform: Callable[[Run], Coroutine[Any, Any, Change | None]]
    ) -> Callable[[Run], Coroutine[Any, Any, Change | None]]:
        """The same on the event loop, inside of a span."""
        processing = self._processing
        if processing is None:
            return perform

        async def traced(run: Run) -> Change | None:
            with processing.span(run.task) as span:
                change = await perform(run)
                conclude(span, outcome_of(run, change), change)
                return change

        return traced

    def function(self, perform: Callable[[Run], Change | None]) -> Callable[[Run], Change | None]:
        """The same in a thread."""
        processing = self._processing
        if processing is None:
            return perform

        def traced(run: Run) -> Change | None:
            with processing.span(run.task) as span:
                change = perform(run)
                conclude(span, outcome_of(run, change), change)
                return change

        return traced


async def flush_spans() -> None:
    """Waits for the last spans to be sent: the process ends in a way that nobody else hears of."""
    flush = getattr(provider(), "force_flush", None)
    if flush is not None:
        flushing = asyncio.create_task(asyncio.to_thread(flush, round(FLUSH_S * 1000)))
        await asyncio.wait([flushing], timeout=FLUSH_S)
