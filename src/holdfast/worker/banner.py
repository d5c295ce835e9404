"""The first lines that a worker prints."""

from __future__ import annotations

import logging

from holdfast.core.durations import format_ms
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
        "%d process%s × %d slots, lease %s, grace %s",
        options.processes,
        "" if options.processes == 1 else "es",
        options.concurrency,
        format_ms(hello.lease_ms),
        format_ms(options.grace_ms),
    )
    _log.info("task types: %s%s", types or "none", f" and {more} more" if more > 0 else "")
