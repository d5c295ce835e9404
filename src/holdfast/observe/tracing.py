"""Traces by OpenTelemetry, in a process that has set up where they go; in any other, nothing at all.

Names and attributes are those of the messaging conventions (of version 1.44, still in development, hence written out
here). No message of an error goes into a span: it may quote an argument.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

from holdfast.core.task import Claimed
from holdfast.errors import BadOption
from holdfast.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer, TracerProvider

    from holdfast.core.lifecycle import Change

T = TypeVar("T")

#: How the span of a run belongs to that of its enqueue.
Traces = Literal["link", "child"]

SYSTEM: Final = "holdfast"
#: As the W3C has it: no trace and no span is all zeros, and there is no version ff.
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
#: So much of a `tracestate` must be carried on; a longer one is left out, since half of it would be wrong.
_TRACESTATE: Final = re.compile(r"[\x20-\x7e]{1,512}")

#: The traceparent of the request that is being answered, and the task that it is about.
_request: ContextVar[tuple[str | None, str | None]] = ContextVar("holdfast_request", default=(None, None))


def check_traces(traces: Traces) -> Traces:
    """The same, or a `BadOption`."""
    if traces not in ("link", "child"):
        raise BadOption(f"traces: {traces!r} is neither 'link' nor 'child'")
    return traces


def provider() -> TracerProvider | None:
    """Where spans go; None if this process has not imported OpenTelemetry, or has not configured a provider."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return None
    found: TracerProvider = trace.get_tracer_provider()
    return None if isinstance(found, trace.ProxyTracerProvider) else found


def _tracer(found: TracerProvider) -> Tracer:
    return found.get_tracer(SYSTEM, __version__)


# -- enqueue -------------------------------------------------------------------------------------------------


class HasTaskId(Protocol):
    """A task that has its id."""

    @property
    def task_id(self) -> str:
        """Its id."""
        ...


class Sending:
    """A span around the recording of tasks; this one is none."""

    def of(self, calls: Iterable[T]) -> Iterable[T]:
        """The same calls, looked at as they pass."""
        return calls

    def recorded(self, handles: Sequence[HasTaskId]) -> None:
        """These are recorded."""


_NOT_SENDING: Final = nullcontext(Sending())


def sending(queue: str, task_type: str | None = None) -> AbstractContextManager[Sending]:
    """A `send` span while the block runs; with a task type, for one task."""
    found = provider()
    return _NOT_SENDING if found is None else _sending(found, queue, task_type)


def carrier() -> dict[str, str]:
    """The headers by which what is recorded now leads back to the span around it; none without one."""
    headers: dict[str, str] = {}
    if provider() is not None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        TraceContextTextMapPropagator().inject(headers)
    return headers


def carrier_of_request(headers: Mapping[str, str]) -> dict[str, str]:
    """The same for what a request records: without a span around it here, it leads back to that of the client."""
    return carrier() or _from_client(headers)


def _from_client(headers: Mapping[str, str]) -> dict[str, str]:
    traceparent = headers.get("traceparent")
    if traceparent is None or not _TRACEPARENT.fullmatch(traceparent):
        return {}
    state = headers.get("tracestate")
    carried = {"traceparent": traceparent}
    return {**carried, "tracestate": state} if state and _TRACESTATE.fullmatch(state) else carried


class _SpanOfSending(Sending):
    def __init__(self, span: Span, queue: str, task_type: str | None) -> None:
        self._span = span
        self._queues = {queue}
        self._alone = task_type is not None

    def of(self, calls: Iterable[T]) -> Iterator[T]:
        """The same calls, and note of their queues taken."""
        for call in calls:
            self._queues.add(call.options.queue)  # type: ignore[attr-defined]
            yield call

    def recorded(self, handles: Sequence[HasTaskId]) -> None:
        """Tells of the tasks what is known now."""
        if self._alone:
            self._span.set_attribute("messaging.message.id", handles[0].task_id)
            return
        self._span.set_attribute("messaging.batch.message_count", len(handles))
        if len(self._queues) > 1:
            self._span.update_name("send")


@contextmanager
def _sending(found: TracerProvider, queue: str, task_type: str | None) -> Iterator[Sending]:
    from opentelemetry.trace import SpanKind, use_span

    attributes = _attributes("send", queue)
    if task_type is not None:
        attributes["holdfast.task.type"] = task_type
    span = _tracer(found).start_span(f"send {queue}", kind=SpanKind.PRODUCER, attributes=attributes)
    with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
        try:
            yield _SpanOfSending(span, queue, task_type)
        except Exception as error:
            _mark_failed(span, f"{type(error).__module__}.{type(error).__qualname__}")
            raise


# -- run -----------------------------------------------------------------------------------------------------


class Processing:
    """Makes a `process` span for every run, linked to the span in which the task was recorded, or below it."""

    def __init__(self, found: TracerProvider, worker_id: str, *, below: bool) -> None:
        self._tracer = _tracer(found)
        self._worker_id = worker_id
        self._below = below

    @contextmanager
    def span(self, task: Claimed) -> Iterator[Span]:
        """The span of a run while the block runs."""
        from opentelemetry.trace import Link, SpanKind, get_current_span, use_span
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        context = TraceContextTextMapPropagator().extract(task.headers)
        origin = get_current_span(context).get_span_context()
        span = self._tracer.start_span(
            f"process {task.queue}",
            context=context if self._below else None,
            kind=SpanKind.CONSUMER,
            attributes=self._attributes(task),
            links=[Link(origin)] if origin.is_valid and not self._below else [],
        )
        with use_span(span, end_on_exit=True, record_exception=False, set_status_on_exception=False):
            yield span

    def _attributes(self, task: Claimed) -> dict[str, Any]:
        return {
            **_attributes("process", task.queue),
            "messaging.message.id": task.task_id,
            "messaging.message.body.size": len(task.payload),
            "messaging.client.id": self._worker_id,
            "holdfast.task.type": task.type,
            "holdfast.task.attempt": task.attempt,
            "holdfast.task.max_attempts": task.policy.max_attempts,
        }


def conclude(span: Span, outcome: str, change: Change | None) -> None:
    """How the run ended, and the class of the error if it was one."""
    span.set_attribute("holdfast.task.outcome", outcome)
    if change is not None and change.error is not None:
        _mark_failed(span, change.error.type)


def _attributes(operation: str, queue: str) -> dict[str, Any]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
        "messaging.destination.name": queue,
    }


def _mark_failed(span: Span, error_type: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("error.type", error_type)
    span.set_status(StatusCode.ERROR)


# -- log lines -----------------------------------------------------------------------------------------------


def note_request(traceparent: str | None, task_id: str | None) -> None:
    """The request that is being answered, for the log lines that are made meanwhile."""
    _request.set((traceparent, task_id))


def request_task_id() -> str | None:
    """The task that the request is about."""
    return _request.get()[1]


def trace_id(headers: Mapping[str, str] | None = None) -> str | None:
    """The trace to which this moment belongs: that of the current span, else of these headers, else of the request."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is not None:
        context = trace.get_current_span().get_span_context()
        if context.is_valid:
            return f"{context.trace_id:032x}"
    traceparent = (headers or {}).get("traceparent") or _request.get()[0] or ""
    found = _TRACEPARENT.fullmatch(traceparent)
    return found[1] if found else None
