"""Documents: stored by kind and name, replaced by version, with guards and tasks."""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec.structs import replace

from holdfast.core.task import Claimed, Hold, NewTask, State
from holdfast.errors import StaleEpoch
from holdfast.stores import documents
from holdfast.stores.contract import MAX_PAGE_BYTES, Document, DocumentResult, DocumentWrite, Store
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, expect_true
from holdfast.testing.kit.kit import FOREIGN_TOKEN, KEEP_NOTHING, LEASE_MS, Kit, ack

group = Group("documents")

_ODD = bytes(range(256)) + b"\r\n: {}"


async def _put(kit: Kit, *names: str, kind: str = "token", value: bytes = b"{}") -> None:
    for name in names:
        expect(f"{kind} {name} is new", await documents.put(kit.store, kind, name, value, 0), True)


async def _standing(store: Store, name: str = "a", kind: str = "token") -> tuple[bytes, int] | None:
    found = await documents.one(store, kind, name)
    return None if found is None else (found.value, found.version)


@group.case
async def stored_exactly(kit: Kit) -> None:
    """A document comes back byte for byte, one by one and in the list, with version 1."""
    await _put(kit, "odd", value=_ODD)
    await _put(kit, "empty", value=b"")
    await _put(kit, "large", value=b"x" * 100_000)
    odd = Document("token", "odd", _ODD, 1)
    expect("one", await documents.one(kit.store, "token", "odd"), odd)
    expect("empty", await documents.one(kit.store, "token", "empty"), Document("token", "empty", b"", 1))
    expect("large", await _standing(kit.store, "large"), (b"x" * 100_000, 1))
    listed = (await kit.store.documents("token")).documents
    expect("first and last of all", listed[::2], [Document("token", "empty", b"", 1), odd])


@group.case
async def unknown_name_is_none(kit: Kit) -> None:
    """A name that no document has is answered with None, and a kind without documents with an empty list."""
    expect("document", await documents.one(kit.store, "token", "a"), None)
    expect("documents", (await kit.store.documents("token")).documents, [])


@group.case
async def listed_by_name(kit: Kit) -> None:
    """All documents of a kind are listed, by name."""
    names = [f"n{(n * 37) % 100:02}" for n in range(100)]
    await asyncio.gather(*(documents.put(kit.store, "token", name, name.encode(), 0) for name in names))
    expected = [Document("token", name, name.encode(), 1) for name in sorted(names)]
    expect("documents", (await kit.store.documents("token")).documents, expected)


@group.case
async def kinds_are_apart(kit: Kit) -> None:
    """Documents of the same name but of different kinds have nothing to do with each other, nor have names alike."""
    await _put(kit, "a", "a.b", "A", value=b"token")
    await _put(kit, "a", kind="setting", value=b"setting")
    expect("removal", await documents.put(kit.store, "token", "a", None, 1), True)
    expect("change", await documents.put(kit.store, "token", "A", b"new", 1), True)
    expect("token", await _standing(kit.store), None)
    expect("token a.b", await _standing(kit.store, "a.b"), (b"token", 1))
    expect("setting", await _standing(kit.store, kind="setting"), (b"setting", 1))
    expect("tokens", [found.name for found in (await kit.store.documents("token")).documents], ["A", "a.b"])
    expect("settings", [found.name for found in (await kit.store.documents("setting")).documents], ["a"])


@group.case
async def replaced_by_the_next_version(kit: Kit) -> None:
    """A caller that names the version that is there replaces the document, and its version grows by one."""
    await _put(kit, "a")
    for version in range(1, 12):
        value = b"value %d" % version
        expect(f"put after {version}", await documents.put(kit.store, "token", "a", value, version), True)
        expect("document", await _standing(kit.store), (value, version + 1))


@group.case
async def other_versions_are_refused(kit: Kit) -> None:
    """A caller that names another version than the one that is there changes nothing, and is told so."""
    await _put(kit, "a")
    await documents.put(kit.store, "token", "a", b"second", 1)
    for expected in (0, 1, 3):
        expect(f"put after {expected}", await documents.put(kit.store, "token", "a", b"late", expected), False)
        expect(f"removal of {expected}", await documents.put(kit.store, "token", "a", None, expected), False)
    expect("put of nothing", await documents.put(kit.store, "token", "b", b"late", 3), False)
    expect("document", await _standing(kit.store), (b"second", 2))
    expect("nothing", await _standing(kit.store, "b"), None)


@group.case
async def equal_value_of_another_version_is_refused(kit: Kit) -> None:
    """A put that finds its value there, but put by a later call, is not its own repeat."""
    await _put(kit, "a", value=b"on")
    await documents.put(kit.store, "token", "a", b"off", 1)
    await documents.put(kit.store, "token", "a", b"on", 2)
    expect("put of the past", await documents.put(kit.store, "token", "a", b"on", 0), False)
    expect("document", await _standing(kit.store), (b"on", 3))


@group.case
async def removed_by_its_version(kit: Kit) -> None:
    """A document is removed by a caller that names its version, and its name is free again."""
    await _put(kit, "a", "b")
    expect("removal", await documents.put(kit.store, "token", "a", None, 1), True)
    expect("document", await _standing(kit.store), None)
    expect("documents", [found.name for found in (await kit.store.documents("token")).documents], ["b"])
    await _put(kit, "a", value=b"anew")
    expect("document", await _standing(kit.store), (b"anew", 1))


@group.case
async def repeats_are_successes(kit: Kit) -> None:
    """The same call again is a success and does nothing: a new document, a replaced one, a removed one."""
    for value, expected, after in ((b"one", 0, (b"one", 1)), (b"two", 1, (b"two", 2)), (None, 2, None)):
        for _ in range(2):
            expect(f"put after {expected}", await documents.put(kit.store, "token", "a", value, expected), True)
            expect("document", await _standing(kit.store), after)


@group.case
async def one_of_many_at_once_wins(kit: Kit) -> None:
    """Of many that replace the same version at the same time, exactly one is told that it has done so."""
    for expected in (0, 1):
        values = [b"%d" % n for n in range(20)]
        done = await asyncio.gather(*(documents.put(kit.store, "token", "a", value, expected) for value in values))
        won = [value for value, success in zip(values, done, strict=True) if success]
        expect("winners", len(won), 1)
        expect("document", await _standing(kit.store), (won[0], expected + 1))


@group.case
async def pruning_spares_documents(kit: Kit) -> None:
    """No document without a time to live goes with time, and queues and schedules know nothing of them."""
    await _put(kit, "a")
    kit.clock.advance(10 * 366 * 86_400_000)
    await kit.prune(KEEP_NOTHING)
    expect("document", await _standing(kit.store), (b"{}", 1))
    expect("queues", await kit.store.counts(), [])
    expect("schedules", (await documents.schedules(kit.store)).schedules, [])


@group.shared
async def others_see_it_at_once(kit: Kit) -> None:
    """What one process has put, another one sees with its next call, also after all have been closed."""
    other = await kit.another()
    await _put(kit, "a", value=b"first")
    expect("other", await _standing(other), (b"first", 1))
    expect("put", await documents.put(other, "token", "a", b"second", 1), True)
    expect("late put", await documents.put(kit.store, "token", "a", b"late", 1), False)
    await kit.reopen()
    expect("after opening", await _standing(kit.store), (b"second", 2))


# -- what is expected ----------------------------------------------------------------------------------------


def _write(name: str = "a", value: bytes | None = b"{}", **fields: Any) -> DocumentWrite:
    return DocumentWrite(kind="token", name=name, value=value, **fields)


def _document(value: bytes, version: int = 1, name: str = "a", **fields: Any) -> Document:
    return Document("token", name, value, version, **fields)


@group.case
async def answers_have_what_is_there(kit: Kit) -> None:
    """A write is answered with the document as it is after it, a refused one with the one that is in its way."""
    first = _document(b"1")
    expect("new", await kit.store.put(_write(value=b"1", expected=0)), DocumentResult(True, first))
    expect("repeat", await kit.store.put(_write(value=b"1", expected=0)), DocumentResult(True, first))
    refused = DocumentResult(False, first, "version")
    for write in (_write(value=b"2", expected=0), _write(value=b"2", expected=2), _write(value=None, expected=2)):
        expect(f"{write}", await kit.store.put(write), refused)
    nothing = DocumentResult(False, None, "version")
    expect("where nothing is", await kit.store.put(_write("b", b"2", expected=1)), nothing)
    expect("removal", await kit.store.put(_write(value=None, expected=1)), DocumentResult(True, None))


@group.case
async def without_an_expected_version(kit: Kit) -> None:
    """A write that expects nothing creates the document, replaces it, or removes it, twice without harm."""
    expect("new", await kit.store.put(_write(value=b"1")), DocumentResult(True, _document(b"1")))
    expect("again", await kit.store.put(_write(value=b"1")), DocumentResult(True, _document(b"1")))
    expect("replaced", await kit.store.put(_write(value=b"2")), DocumentResult(True, _document(b"2", 2)))
    expect("document", await _standing(kit.store), (b"2", 2))
    for _ in range(2):
        expect("removal", await kit.store.put(_write(value=None)), DocumentResult(True, None))
    expect("document", await _standing(kit.store), None)


@group.case
async def explicit_version_is_stored(kit: Kit) -> None:
    """A write may say which version the document gets; the same write again is a success."""
    for _ in range(2):
        result = await kit.store.put(_write(value=b"1", expected=0, version=7))
        expect("new", result, DocumentResult(True, _document(b"1", 7)))
    for _ in range(2):
        result = await kit.store.put(_write(value=b"2", expected=7, version=20))
        expect("replaced", result, DocumentResult(True, _document(b"2", 20)))
    late = await kit.store.put(_write(value=b"3", expected=7, version=20))
    expect("late", late, DocumentResult(False, _document(b"2", 20), "version"))
    expect("next", (await kit.store.put(_write(value=b"3", expected=20))).document, _document(b"3", 21))


# -- tasks that are sent along -------------------------------------------------------------------------------


def _queue(kit: Kit) -> str:
    """A queue whose tasks lie in partition 0, where documents like these lie."""
    return next(queue for queue in (f"q-{n}" for n in range(1_000)) if kit.place(queue, "r") == 0)


def _task(kit: Kit, request_id: str = "r-1", **fields: Any) -> NewTask:
    return kit.new_task(queue=_queue(kit), request_id=request_id, **fields)


@group.case
async def tasks_come_with_the_write(kit: Kit) -> None:
    """The tasks of a write are enqueued with it, ready or delayed, for a new document, a replaced and a removed one."""
    values: tuple[bytes | None, ...] = (b"1", b"2", None)
    for version, value in enumerate(values):
        now, later = _task(kit, f"r-{version}"), _task(kit, f"l-{version}", delay_ms=500)
        result = await kit.store.put(_write(value=value, expected=version, tasks=[now, later]))
        expect("applied", result.applied, True)
        states = [await kit.state(task.task_id) for task in (now, later)]
        expect("states", states, [State.READY, State.SCHEDULED])
    expect("handed out", len(await kit.reserve(9, queues=(_queue(kit),))), 3)


@group.case
async def repeated_write_enqueues_nothing(kit: Kit) -> None:
    """The same write again enqueues nothing, not even when its task has come and gone meanwhile."""
    for expected, value in ((0, b"1"), (None, b"2"), (2, None)):
        task = _task(kit, f"r-{expected}")
        write = _write(value=value, expected=expected, tasks=[task])
        expect("first", (await kit.store.put(write)).applied, True)
        await kit.apply(ack(await kit.reserve_one(queues=(_queue(kit),))))
        await kit.prune(KEEP_NOTHING)
        expect("repeat", (await kit.store.put(write)).applied, True)
        expect("task", await kit.store.get([task.task_id]), [None])


@group.case
async def refused_write_enqueues_nothing(kit: Kit) -> None:
    """A write that finds another version enqueues nothing."""
    await _put(kit, "a")
    task = _task(kit)
    for write in (
        _write(value=b"late", expected=0, tasks=[task]),
        _write(value=b"late", expected=2, tasks=[task]),
        _write(value=None, expected=2, tasks=[task]),
        _write("b", b"late", expected=1, tasks=[task]),
    ):
        expect(f"{write.expected}", (await kit.store.put(write)).applied, False)
    expect("task", await kit.store.get([task.task_id]), [None])
    expect("queues", await kit.store.counts(), [])


@group.case
async def known_task_does_not_stop_the_write(kit: Kit) -> None:
    """A task_id or request_id that is known makes no second task, and the document is written."""
    first, second = _task(kit, "r-0"), _task(kit, "r-1")
    await kit.store.enqueue([first, second])
    again = [first, _task(kit, "r-1", payload=b'{"other":true}'), _task(kit, "new")]
    expect("applied", (await kit.store.put(_write(expected=0, tasks=again))).applied, True)
    expect("document", await _standing(kit.store), (b"{}", 1))
    expect("ready tasks", (await kit.counts(_queue(kit))).states.get(State.READY), 3)


# -- guards --------------------------------------------------------------------------------------------------


async def _unchanged(kit: Kit, task_id: str, *names: str) -> None:
    for name in names:
        expect(f"document {name}", await _standing(kit.store, name), (b"{}", 1))
    expect("documents", len((await kit.store.documents("token")).documents), len(names))
    expect("task", await kit.store.get([task_id]), [None])


@group.case
async def old_epoch_writes_nothing(kit: Kit) -> None:
    """A write with the epoch of a former leader raises `StaleEpoch` and does nothing; the leader's is applied."""
    await _put(kit, "a")
    old = await kit.leader_epoch()
    current = await kit.new_leader_epoch()
    task = _task(kit)
    for epoch in (old, current + 1):
        for write in (_write(value=b"2"), _write(value=None), _write("b", b"1", expected=0), _write(expected=0)):
            try:
                await kit.store.put(replace(write, epoch=epoch, tasks=[task]))
            except StaleEpoch:
                continue
            raise AssertionError(f"epoch {epoch} is refused while {current} is the leader's")
    await _unchanged(kit, task.task_id, "a")
    result = await kit.store.put(_write(value=b"2", expected=1, epoch=current, tasks=[task]))
    expect("the leader's", result, DocumentResult(True, _document(b"2", 2)))
    expect("its task", await kit.state(task.task_id), State.READY)


async def _lost(kit: Kit) -> tuple[Claimed, Claimed]:
    """A claim that was taken away, and the one that followed it."""
    old = await kit.claim()
    kit.clock.advance(LEASE_MS)
    await kit.requeue_expired()
    return old, await kit.reserve_one()


@group.case
async def lost_claim_writes_nothing(kit: Kit) -> None:
    """A write under a claim that is not current does nothing and says why; under the current one it is applied."""
    await _put(kit, "a")
    old, new = await _lost(kit)
    stale, unknown = Hold(old.task_id, old.token), Hold(kit.ids.task_id(), FOREIGN_TOKEN)
    task = _task(kit)
    for hold, reason in (
        (stale, "stale_claim"),
        (unknown, "unknown"),
        (Hold(new.task_id, FOREIGN_TOKEN), "stale_claim"),
    ):
        for write in (_write(value=b"2"), _write(value=None), _write(value=b"2", expected=1)):
            result = await kit.store.put(replace(write, hold=hold, tasks=[task]))
            expect("refused", result, DocumentResult(False, _document(b"{}"), reason))
        result = await kit.store.put(_write("b", b"1", hold=hold))
        expect("refused", result, DocumentResult(False, None, reason))
    await _unchanged(kit, task.task_id, "a")
    before = await kit.record(new.task_id)
    result = await kit.store.put(_write(value=b"2", expected=1, hold=Hold(new.task_id, new.token, b"99"), tasks=[task]))
    expect("under the current claim", result, DocumentResult(True, _document(b"2", 2)))
    expect("record", await kit.record(new.task_id), before)
    expect("its task", await kit.state(task.task_id), State.READY)


# -- time ----------------------------------------------------------------------------------------------------


@group.case
async def ends_by_the_stores_clock(kit: Kit) -> None:
    """A document with a time to live says when it ends, and is there until then and not after it."""
    now_ms = kit.clock.now_ms()
    result = await kit.store.put(_write(value=b"1", expected=0, ttl_ms=1_000, due_at_ms=now_ms))
    wanted = _document(b"1", due_at_ms=now_ms, expires_at_ms=now_ms + 1_000)
    expect("new", result, DocumentResult(True, wanted))
    kit.clock.advance(999)
    expect("a millisecond before", await documents.one(kit.store, "token", "a"), wanted)
    await _put(kit, "B")
    cursor = (await kit.store.documents("token", limit=1)).cursor
    kit.clock.advance(1)
    expect("in the list", [found.name for found in (await kit.store.documents("token")).documents], ["B"])
    for what, page in (
        ("by name", await kit.store.documents("token", names=["a"])),
        ("on the second page", await kit.store.documents("token", cursor=cursor)),
        ("by its due time", await kit.store.documents("token", due_within_ms=5_000)),
    ):
        expect(what, page.documents, [])


@group.case
async def expired_counts_as_absent(kit: Kit) -> None:
    """Where a document has expired there is none: a new one is of version 1, and its old version is refused."""
    await kit.store.put(_write(value=b"1", expected=0, ttl_ms=1_000))
    await kit.store.put(_write(value=b"2", expected=1, ttl_ms=1_000))
    kit.clock.advance(1_000)
    late = await kit.store.put(_write(value=b"3", expected=2))
    expect("by its old version", late, DocumentResult(False, None, "version"))
    expect("removal", await kit.store.put(_write(value=None, expected=2)), DocumentResult(True, None))
    expect("new", await kit.store.put(_write(value=b"2", expected=0)), DocumentResult(True, _document(b"2")))
    kit.clock.advance(10_000)
    expect("for ever", await _standing(kit.store), (b"2", 1))


@group.case
async def expired_documents_are_pruned(kit: Kit) -> None:
    """Prune deletes expired documents of any kind, counts them within its limit, and leaves the others."""
    for n in range(3):
        for kind in ("token", "setting"):
            await kit.store.put(DocumentWrite(kind=kind, name=f"{n}", value=b"1", ttl_ms=1_000))
    await kit.store.put(_write("long", ttl_ms=9_000))
    await _put(kit, "for-ever")
    epoch = await kit.leader_epoch()
    kit.clock.advance(999)
    expect("pruned before their time", await kit.store.prune(epoch, KEEP_NOTHING, 4), 0)
    kit.clock.advance(1)
    numbers = [await kit.store.prune(epoch, KEEP_NOTHING, 4) for _ in range(3)]
    expect("pruned by each call", numbers, [4, 2, 0])
    names = [document.name for document in (await kit.store.documents("token")).documents]
    expect("left", names, ["for-ever", "long"])


@group.case
async def replacing_changes_both_times(kit: Kit) -> None:
    """A write without a due time or a time to live leaves a document without them."""
    now_ms = kit.clock.now_ms()
    await kit.store.put(_write(value=b"1", ttl_ms=1_000, due_at_ms=now_ms))
    expect("replaced", await kit.store.put(_write(value=b"2", expected=1)), DocumentResult(True, _document(b"2", 2)))
    kit.clock.advance(5_000)
    expect("document", await documents.one(kit.store, "token", "a"), _document(b"2", 2))
    expect("due", (await kit.store.documents("token", due_within_ms=0)).documents, [])


@group.case
async def another_due_time_is_another_write(kit: Kit) -> None:
    """A write of the same value for another time is not a repeat: the document is due at the new time."""
    now_ms = kit.clock.now_ms()
    await kit.store.put(_write(value=b"1", due_at_ms=now_ms))
    later = _document(b"1", 2, due_at_ms=now_ms + 500)
    for _ in range(2):
        result = await kit.store.put(_write(value=b"1", due_at_ms=now_ms + 500))
        expect("later", result, DocumentResult(True, later))
    expect("at the old time", (await kit.store.documents("token", due_within_ms=0)).documents, [])
    expect("at the new time", (await kit.store.documents("token", due_within_ms=500)).documents, [later])


@group.case
async def due_soonest_first(kit: Kit) -> None:
    """With a time, those that are due within it come, the soonest first, no more than asked for, without a cursor."""
    now_ms = kit.clock.now_ms()
    for name, due_at_ms in (("a", 300), ("b", 100), ("c", None), ("d", 0), ("e", 100)):
        at_ms = None if due_at_ms is None else now_ms + due_at_ms
        await kit.store.put(_write(name, expected=0, due_at_ms=at_ms))
    await kit.store.put(DocumentWrite(kind="setting", name="other", value=b"1", due_at_ms=now_ms))
    for within_ms, names in ((0, ["d"]), (99, ["d"]), (100, ["d", "b", "e"]), (300, ["d", "b", "e", "a"])):
        page = await kit.store.documents("token", due_within_ms=within_ms)
        expect(f"due within {within_ms}", [document.name for document in page.documents], names)
        expect("cursor and time", (page.cursor, page.now_ms), (None, now_ms))
    page = await kit.store.documents("token", due_within_ms=300, limit=2)
    expect("two", ([document.name for document in page.documents], page.cursor), (["d", "b"], None))
    kit.clock.advance(100)
    page = await kit.store.documents("token", due_within_ms=0)
    expect("later", [document.due_at_ms for document in page.documents], [now_ms, now_ms + 100, now_ms + 100])


# -- pages ---------------------------------------------------------------------------------------------------


@group.case
async def some_by_their_names(kit: Kit) -> None:
    """Those of the given names that exist come, each once and by name, and none for no names."""
    await _put(kit, *"abcde")
    page = await kit.store.documents("token", names=["d", "x", "b", "d", "B"])
    expect("found", [document.name for document in page.documents], ["b", "d"])
    expect("cursor and time", (page.cursor, page.now_ms), (None, kit.clock.now_ms()))
    expect("no names", (await kit.store.documents("token", names=[])).documents, [])


async def _pages(kit: Kit, limit: int, most: int = 50) -> list[list[str]]:
    """The names on each page, to the last one."""
    pages: list[list[str]] = []
    cursor: str | None = None
    while len(pages) < most:
        page = await kit.store.documents("token", cursor=cursor, limit=limit)
        pages.append([document.name for document in page.documents])
        cursor = page.cursor
        if cursor is None:
            return pages
    raise AssertionError(f"there is a last page after {most}")


@group.case
async def pages_to_the_end(kit: Kit) -> None:
    """Page by page every document comes once, by name; only a page without a cursor is the last one."""
    expect("no documents", await _pages(kit, 3), [[]])
    names = [f"n{n:02}" for n in range(10)]
    await _put(kit, *names)
    for limit in (1, 3, 7):
        pages = await _pages(kit, limit)
        expect(f"names by {limit}", [name for page in pages for name in page], names)
        expect_true(f"no page has more than {limit}", max(len(page) for page in pages) <= limit)
    expect("all in one", await _pages(kit, 10), [names])


@group.case
async def cursor_outlives_its_document(kit: Kit) -> None:
    """A page goes on behind the last one, whatever was removed or came before it meanwhile."""
    await _put(kit, *"bdfh")
    first = await kit.store.documents("token", limit=2)
    expect("first", [document.name for document in first.documents], ["b", "d"])
    await kit.store.put(_write("d", None))
    await _put(kit, "a", "e")
    rest = await kit.store.documents("token", cursor=first.cursor)
    expect("rest", ([document.name for document in rest.documents], rest.cursor), (["e", "f", "h"], None))


@group.case
async def pages_are_limited_in_bytes(kit: Kit) -> None:
    """A page has no more than `MAX_PAGE_BYTES` of values, in the list and by names."""
    names, value = [f"n{n:02}" for n in range(20)], b"x" * 240_000
    for name in names:
        expect("new", (await kit.store.put(_write(name, value, expected=0))).applied, True)
    for wanted in (None, names):
        found: list[str] = []
        cursor: str | None = None
        for _ in names:
            page = await kit.store.documents("token", names=wanted, cursor=cursor)
            expect_true("a page fits", sum(len(document.value) for document in page.documents) <= MAX_PAGE_BYTES)
            found += [document.name for document in page.documents]
            cursor = page.cursor
            if cursor is None:
                break
        expect("names", (found, cursor), (names, None))
