"""The first log lines of a worker: what runs here, and warnings about what will not."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from typing import Final

from holdfast.core.durations import format_ms
from holdfast.core.names import format_bytes
from holdfast.errors import HoldfastError
from holdfast.stores.contract import MAX_BATCH, Store
from holdfast.stores.documents import queue_settings_of
from holdfast.version import __version__
from holdfast.worker.options import WorkerOptions
from holdfast.worker.protocol import Hello

_log = logging.getLogger("holdfast.worker")

#: How many task types the banner names.
MAX_TYPES_SHOWN: Final = 200
#: How many characters of names go into one line of the banner.
LINE_CHARS: Final = 100


def show_banner(options: WorkerOptions, hello: Hello, queues: Sequence[str], store_url: str) -> None:
    """What runs here, and warnings about what will not; the URL comes without its password."""
    _log.info("Holdfast %s: %s on %s", __version__, options.app, store_url)
    _log.info("queues: %s", options.queues or ", ".join(queues))
    _log.info(
        "%s × %s%s, lease %s, grace %s",
        _processes(options.processes),
        "1 slot" if options.concurrency == 1 else f"{options.concurrency} slots",
        f", {_processes(options.cpu_processes)} for one task at a time" if hello.alone else "",
        format_ms(hello.lease_ms),
        format_ms(options.grace_ms),
    )
    if limits := _limits(options):
        _log.info("a process is recycled after %s", ", ".join(limits))
    for line in _wrapped(hello.types[:MAX_TYPES_SHOWN]):
        _log.info("task types: %s", line)
    if len(hello.types) > MAX_TYPES_SHOWN:
        _log.info("task types: and %d more", len(hello.types) - MAX_TYPES_SHOWN)
    if not hello.types:
        _warn_of_no_types(options.app)
    elif options.queues is not None:
        _warn_of_queues(options.app, queues, hello.queues)


async def warn_of_paused(queues: Sequence[str], store: Store) -> None:
    """Warns about those of these queues that are paused."""
    try:
        for first in range(0, len(queues), MAX_BATCH):
            page = await store.documents("queue", names=queues[first : first + MAX_BATCH])
            for document in page.documents:
                if queue_settings_of(document).paused:
                    name = document.name
                    _log.warning("queue %s is paused: its tasks wait until `holdfast queues resume %s`", name, name)
    except HoldfastError as error:  # a token that may not read it; an outage is logged by the heartbeat
        _log.debug("could not check for paused queues: %s", error)


def _warn_of_no_types(app: str) -> None:
    module = app.partition(":")[0]
    _log.warning(
        "%s declares no task types, so this worker runs no tasks: name the modules that declare them, as in "
        'app.include("project.mail"), or import them in %s',
        app,
        module,
    )


def _warn_of_queues(app: str, served: Sequence[str], declared: Sequence[str]) -> None:
    for queue in served:
        if queue not in declared:
            close = get_close_matches(queue, declared, n=1)
            hint = f"did you mean {close[0]}?" if close else f"its types use {', '.join(declared)}"
            _log.warning("--queues: no task type of %s uses queue %s; %s", app, queue, hint)
    if left := [queue for queue in declared if queue not in served]:
        _log.info("queues of the app that this worker does not serve: %s", ", ".join(left))


def _wrapped(names: Iterable[str]) -> Iterator[str]:
    """The names with commas, several to a line; `none` without any."""
    line = ""
    for name in names:
        if line and len(line) + len(name) > LINE_CHARS:
            yield line
            line = ""
        line = f"{line}, {name}" if line else name
    yield line or "none"


def _processes(count: int) -> str:
    return "1 process" if count == 1 else f"{count} processes"


def _limits(options: WorkerOptions) -> list[str]:
    return [
        *([f"{options.max_tasks} tasks"] if options.max_tasks else []),
        *([format_ms(options.max_age_ms)] if options.max_age_ms else []),
        *([f"{format_bytes(options.max_memory)} of memory"] if options.max_memory else []),
    ]
