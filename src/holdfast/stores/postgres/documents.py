"""Documents: one compare-and-set, and pages of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.errors import BadOption
from holdfast.stores.contract import (
    MAINTENANCE_WAKEUP,
    MAX_BATCH,
    MAX_PAGE_BYTES,
    Document,
    DocumentPage,
    DocumentResult,
    DocumentWrite,
)
from holdfast.stores.decode import number_in
from holdfast.stores.decorate import SinglePartition, stale_map
from holdfast.stores.documents import DISCARD, QUEUE, discard_document, queue_settings_of
from holdfast.stores.postgres import answers
from holdfast.stores.postgres.arguments import batch, document_write, known_id, plain_text
from holdfast.stores.postgres.encoding import uuids

if TYPE_CHECKING:
    from holdfast.stores.postgres.calls import Calls, Database


class Documents(SinglePartition):
    """The part of the store that has what is not a task."""

    url: str
    _call: Calls
    _database: Database

    async def documents(
        self,
        kind: str,
        *,
        names: Sequence[str] | None = None,
        due_within_ms: int | None = None,
        cursor: str | None = None,
        limit: int = MAX_BATCH,
    ) -> DocumentPage:
        """A page of documents."""
        most = max(1, min(limit, MAX_BATCH))
        if kind == DISCARD:
            return await self._discards(names, cursor, most)
        wanted = None if names is None else [plain_text(name) for name in names]
        rows = await self._call(
            "get_documents",
            self._call.now(),
            plain_text(kind),
            wanted,
            due_within_ms,
            plain_text(cursor),
            most,
            MAX_PAGE_BYTES,
        )
        found = [Document(kind, *row[1:]) for row in rows if row[2] is not None]
        more = rows[-1][1] is not None and rows[-1][2] is None and due_within_ms is None
        return DocumentPage(found, rows[0][0], found[-1].name if more else None)

    async def _discards(self, names: Sequence[str] | None, cursor: str | None, most: int) -> DocumentPage:
        """Records of discarded tasks, the newest first; the cursor is the number of the last one."""
        ids = None if names is None else uuids([known_id(name) for name in names])
        rows = await self._call(
            "get_discards", self._call.now(), ids, None if cursor is None else number_in(cursor), most, MAX_PAGE_BYTES
        )
        found = [row for row in rows if row[5] is not None]
        more = rows[-1][1] is not None and rows[-1][5] is None
        documents = [discard_document(answers.discard(row)) for row in found]
        return DocumentPage(documents, rows[0][0], str(found[-1][1]) if more else None)

    async def put(self, write: DocumentWrite) -> DocumentResult:
        """One compare-and-set; as safe as the durability level says when it returns."""
        if write.kind == DISCARD:
            raise BadOption("documents of kind 'discard' are written by the store, when a task is discarded")
        with answers.refusals():
            [row] = await self._call(
                "put",
                self._call.now(),
                document_write(write),
                batch(write.tasks),
                safe=True,
                may_lock=any(task.request_id is not None for task in write.tasks),
            )
        outcome, number, version, due_at_ms, expires_at_ms, value, wakes = row
        if outcome == "stale_epoch":
            answers.check_epoch(write.epoch, number)
        if outcome == "stale_map":
            raise stale_map(self.url, number)
        applied = outcome == "applied"
        value = write.value if applied else value
        found = None if value is None else Document(write.kind, write.name, value, version, due_at_ms, expires_at_ms)
        if applied:
            self._notify(write, found, wakes)
        return DocumentResult(applied, found, "" if applied else outcome)

    def _notify(self, write: DocumentWrite, found: Document | None, wakes: bool) -> None:
        wakeups = {task.queue for task in write.tasks if not task.delay_ms or task.run_at_ms is not None}
        if wakes:
            wakeups.add(MAINTENANCE_WAKEUP)
        if write.kind == QUEUE and not queue_settings_of(found).paused:
            wakeups.add(write.name)
        self._database.notify(wakeups)
