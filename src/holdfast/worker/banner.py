"""The first lines that a worker prints."""

from __future__ import annotations

import logging

from holdfast.core.durations import format_ms
from holdfast.core.sizes import format_bytes
from holdfast.version import __version__
from holdfast.worker.messages import Hello
from holdfast.worker.options import WorkerOptions

_log = logging.getLogger("holdfast.worker")

_TYPES_SHOWN = 8


def show_banner(options: WorkerOptions, hello: Hello, store_url: str) -> None:
    """What runs here, in a few lines; the URL comes without its password."""
    types = ", ".join(hello.types[:_TYPES_SHOWN])
    more = len(hello.types) - _TYPES_SHOWN
    _log.info("Holdfast %s: %s on %s", __version__, options.app, store_url)
    _log.info("queues: %s", options.queues)
    _log.info(
        "%s × %d slots%s, lease %s, grace %s",
        _processes(options.processes),
        options.concurrency,
        f", {_processes(options.cpu_processes)} for one task at a time" if hello.alone else "",
        format_ms(hello.lease_ms),
        format_ms(options.grace_ms),
    )
    if limits := _limits(options):
        _log.info("a process is replaced after %s", ", ".join(limits))
    _log.info("task types: %s%s", types or "none", f" and {more} more" if more > 0 else "")


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _limits(options: WorkerOptions) -> list[str]:
    return [
        *([f"{options.max_tasks} tasks"] if options.max_tasks else []),
        *([format_ms(options.max_age_ms)] if options.max_age_ms else []),
        *([f"{format_bytes(options.max_memory)} of memory"] if options.max_memory else []),
    ]
