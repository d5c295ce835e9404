"""Spans of a process in a file, one a line: what tests ask for by name, and all that there is of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult


class ToFile(SpanExporter):
    """Appends."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        with self._path.open("a") as file:
            file.writelines(json.dumps(_plain(span)) + "\n" for span in spans)
        return SpanExportResult.SUCCESS


def _plain(span: ReadableSpan) -> dict[str, Any]:
    return {
        "name": span.name,
        "trace": f"{span.context.trace_id:032x}",
        "span": f"{span.context.span_id:016x}",
        "parent": f"{span.parent.span_id:016x}" if span.parent else None,
        "links": [f"{link.context.span_id:016x}" for link in span.links],
        "attributes": dict(span.attributes or {}),
        "all": json.loads(span.to_json()),
    }


def write_spans(path: Path) -> None:
    """From now on, and when they are flushed, for none of the tests waits so long."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(ToFile(path), schedule_delay_millis=60_000))
    trace.set_tracer_provider(provider)


def read_spans(path: Path) -> list[dict[str, Any]]:
    """Those that were written."""
    return [json.loads(line) for line in path.read_text().splitlines()]
