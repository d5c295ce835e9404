"""Spans of producers, with the SDK's exporter in memory; and that there is nothing without a provider."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from holdfast import Holdfast
from holdfast.errors import BadOption, RequestConflict
from holdfast.observe.tracing import note_request, provider, trace_id


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Holdfast]:
    with Holdfast(f"sqlite:///{tmp_path}/tasks.db") as app:
        app.task(name="resize", queue="images")(lambda url: None)
        yield app


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    sdk = TracerProvider()
    sdk.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", sdk)
    return exporter


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def parent_header(span: ReadableSpan) -> str:
    assert span.context is not None
    context = span.context
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def enqueued(app: Holdfast, how: str) -> list[str]:
    resize = app.task_types["resize"]
    if how == "sync":
        return [resize.enqueue("cat.jpg").task_id]
    if how == "async":
        return [asyncio.run(resize.aenqueue("cat.jpg")).task_id]
    return [handle.task_id for handle in app.enqueue_many(resize.prepare("cat.jpg") for _ in range(3))]


@pytest.mark.parametrize("how", ["sync", "async", "many"])
def test_an_enqueue_is_a_span_and_its_tasks_carry_it(app: Holdfast, exporter: InMemorySpanExporter, how: str) -> None:
    ids = enqueued(app, how)
    (span,) = exporter.get_finished_spans()
    assert (span.name, span.kind, span.status.status_code) == ("send images", SpanKind.PRODUCER, StatusCode.UNSET)
    known = {
        "messaging.system": "holdfast",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "images",
    }
    own: dict[str, Any] = {"messaging.message.id": ids[0], "holdfast.task.type": "resize"}
    assert attributes(span) == known | ({"messaging.batch.message_count": 3} if how == "many" else own)
    for task_id in ids:
        assert app.handle(task_id).status().headers == {"traceparent": parent_header(span)}
    asyncio.run(app.aclose())


def test_it_belongs_to_the_span_around_it(app: Holdfast, exporter: InMemorySpanExporter) -> None:
    with trace.get_tracer("web").start_as_current_span("request") as request:
        enqueued(app, "sync")
    sent = exporter.get_finished_spans()[0]
    assert sent.parent is not None
    assert sent.parent.span_id == request.get_span_context().span_id


def test_headers_of_the_caller_come_first(app: Holdfast, exporter: InMemorySpanExporter) -> None:
    given = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tenant": "7"}
    handle = app.task_types["resize"].using(headers=given).enqueue("cat.jpg")
    assert handle.status().headers == given
    assert len(exporter.get_finished_spans()) == 1


def test_a_refused_enqueue_tells_its_class_and_not_its_message(app: Holdfast, exporter: InMemorySpanExporter) -> None:
    resize = app.task_types["resize"].using(request_id="once")
    resize.enqueue("cat.jpg")
    with pytest.raises(RequestConflict):
        resize.enqueue("canary.jpg")
    span = exporter.get_finished_spans()[-1]
    assert span.status.status_code is StatusCode.ERROR
    assert span.status.description is None
    assert span.events == ()
    assert attributes(span)["error.type"] == "holdfast.errors.RequestConflict"
    assert "canary" not in span.to_json()


def test_calls_for_several_queues_are_one_span_without_a_queue_in_its_name(
    app: Holdfast, exporter: InMemorySpanExporter
) -> None:
    resize = app.task_types["resize"]
    app.enqueue_many([resize.prepare("a"), resize.using(queue="other").prepare("b")])
    assert [span.name for span in exporter.get_finished_spans()] == ["send"]


def test_without_a_provider_nothing_is_added(app: Holdfast) -> None:
    assert provider() is None
    (task_id,) = enqueued(app, "sync")
    assert app.handle(task_id).status().headers == {}


def test_a_producer_does_not_import_what_it_does_not_use() -> None:
    code = (
        "import sys, holdfast\n"
        "app = holdfast.Holdfast('sqlite://')\n"
        "app.task(name='t')(lambda: None)\n"
        "app.task_types['t'].enqueue()\n"
        "app.close()\n"
        "print([m for m in sys.modules if m.startswith(('opentelemetry', 'prometheus_client'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "[]\n"


def test_the_option_has_two_values() -> None:
    with pytest.raises(BadOption, match="neither 'link' nor 'child'"):
        Holdfast(traces="parent")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("traceparent", "found"),
    [
        (f"00-{'a' * 32}-{'b' * 16}-01", "a" * 32),
        ("00-zz-01", None),
        (f"00-{'a' * 32}-{'b' * 16}-01\n", None),
        ("", None),
        (None, None),
    ],
)
def test_the_trace_of_a_request_is_read_from_its_header(traceparent: str | None, found: str | None) -> None:
    async def request() -> str | None:
        note_request(traceparent, None)
        return trace_id()

    assert asyncio.run(request()) == found
    assert trace_id({"traceparent": traceparent or ""}) == found
