"""Documents: kept by kind and name, replaced by version."""

from __future__ import annotations

import asyncio

from holdfast.stores.contract import Document, Store
from holdfast.testing.conformance.registry import Group
from holdfast.testing.expect import expect
from holdfast.testing.kit import KEEP_NOTHING, Kit

group = Group("documents")

_ODD = bytes(range(256)) + b"\r\n: {}"


async def _put(kit: Kit, *names: str, kind: str = "token", value: bytes = b"{}") -> None:
    for name in names:
        expect(f"{kind} {name} is new", await kit.store.put_document(kind, name, value, 0), True)


async def _standing(store: Store, name: str = "a", kind: str = "token") -> tuple[bytes, int] | None:
    found = await store.document(kind, name)
    return None if found is None else (found.value, found.version)


@group.case
async def kept_exactly(kit: Kit) -> None:
    """A document comes back byte for byte, one by one and in the list, with version 1."""
    await _put(kit, "odd", value=_ODD)
    await _put(kit, "empty", value=b"")
    await _put(kit, "large", value=b"x" * 100_000)
    odd = Document("token", "odd", _ODD, 1)
    expect("one", await kit.store.document("token", "odd"), odd)
    expect("empty", await kit.store.document("token", "empty"), Document("token", "empty", b"", 1))
    expect("large", await _standing(kit.store, "large"), (b"x" * 100_000, 1))
    listed = await kit.store.documents("token")
    expect("first and last of all", listed[::2], [Document("token", "empty", b"", 1), odd])


@group.case
async def unknown_name_is_none(kit: Kit) -> None:
    """A name that no document has is answered with None, and a kind without documents with an empty list."""
    expect("document", await kit.store.document("token", "a"), None)
    expect("documents", await kit.store.documents("token"), [])


@group.case
async def listed_by_name(kit: Kit) -> None:
    """All documents of a kind are listed, by name."""
    names = [f"n{(n * 37) % 100:02}" for n in range(100)]
    await asyncio.gather(*(kit.store.put_document("token", name, name.encode(), 0) for name in names))
    expected = [Document("token", name, name.encode(), 1) for name in sorted(names)]
    expect("documents", await kit.store.documents("token"), expected)


@group.case
async def kinds_are_apart(kit: Kit) -> None:
    """Documents of the same name but of different kinds have nothing to do with each other, nor have names alike."""
    await _put(kit, "a", "a.b", "A", value=b"token")
    await _put(kit, "a", kind="setting", value=b"setting")
    expect("removal", await kit.store.put_document("token", "a", None, 1), True)
    expect("change", await kit.store.put_document("token", "A", b"new", 1), True)
    expect("token", await _standing(kit.store), None)
    expect("token a.b", await _standing(kit.store, "a.b"), (b"token", 1))
    expect("setting", await _standing(kit.store, kind="setting"), (b"setting", 1))
    expect("tokens", [found.name for found in await kit.store.documents("token")], ["A", "a.b"])
    expect("settings", [found.name for found in await kit.store.documents("setting")], ["a"])


@group.case
async def replaced_by_the_next_version(kit: Kit) -> None:
    """Whoever names the version that is there replaces the document, and its version grows by one."""
    await _put(kit, "a")
    for version in range(1, 12):
        value = b"value %d" % version
        expect(f"put after {version}", await kit.store.put_document("token", "a", value, version), True)
        expect("document", await _standing(kit.store), (value, version + 1))


@group.case
async def other_versions_are_refused(kit: Kit) -> None:
    """Whoever names another version than the one that is there changes nothing, and is told so."""
    await _put(kit, "a")
    await kit.store.put_document("token", "a", b"second", 1)
    for expected in (0, 1, 3):
        expect(f"put after {expected}", await kit.store.put_document("token", "a", b"late", expected), False)
        expect(f"removal of {expected}", await kit.store.put_document("token", "a", None, expected), False)
    expect("put of nothing", await kit.store.put_document("token", "b", b"late", 3), False)
    expect("document", await _standing(kit.store), (b"second", 2))
    expect("nothing", await _standing(kit.store, "b"), None)


@group.case
async def equal_value_of_another_version_is_refused(kit: Kit) -> None:
    """A put that finds its value there, but put by somebody else later, is not its own repeat."""
    await _put(kit, "a", value=b"on")
    await kit.store.put_document("token", "a", b"off", 1)
    await kit.store.put_document("token", "a", b"on", 2)
    expect("put of the past", await kit.store.put_document("token", "a", b"on", 0), False)
    expect("document", await _standing(kit.store), (b"on", 3))


@group.case
async def removed_by_its_version(kit: Kit) -> None:
    """A document is removed by whoever names its version, and its name is free again."""
    await _put(kit, "a", "b")
    expect("removal", await kit.store.put_document("token", "a", None, 1), True)
    expect("document", await _standing(kit.store), None)
    expect("documents", [found.name for found in await kit.store.documents("token")], ["b"])
    await _put(kit, "a", value=b"anew")
    expect("document", await _standing(kit.store), (b"anew", 1))


@group.case
async def repeats_are_successes(kit: Kit) -> None:
    """The same call again is a success and does nothing: a new document, a replaced one, a removed one."""
    for value, expected, after in ((b"one", 0, (b"one", 1)), (b"two", 1, (b"two", 2)), (None, 2, None)):
        for _ in range(2):
            expect(f"put after {expected}", await kit.store.put_document("token", "a", value, expected), True)
            expect("document", await _standing(kit.store), after)


@group.case
async def one_of_many_at_once_wins(kit: Kit) -> None:
    """Of many who replace the same version at the same time, exactly one is told that it has done so."""
    for expected in (0, 1):
        values = [b"%d" % n for n in range(20)]
        done = await asyncio.gather(*(kit.store.put_document("token", "a", value, expected) for value in values))
        won = [value for value, success in zip(values, done, strict=True) if success]
        expect("winners", len(won), 1)
        expect("document", await _standing(kit.store), (won[0], expected + 1))


@group.case
async def pruning_spares_documents(kit: Kit) -> None:
    """No document goes with time, and queues and schedules know nothing of them."""
    await _put(kit, "a")
    kit.clock.advance(10 * 366 * 86_400_000)
    await kit.prune(KEEP_NOTHING)
    expect("document", await _standing(kit.store), (b"{}", 1))
    expect("queues", await kit.store.counts(), [])
    expect("schedules", (await kit.store.schedules()).schedules, [])


@group.shared
async def others_see_it_at_once(kit: Kit) -> None:
    """What one process has put, another one sees with its next call, also after all have been closed."""
    other = await kit.another()
    await _put(kit, "a", value=b"first")
    expect("other", await _standing(other), (b"first", 1))
    expect("put", await other.put_document("token", "a", b"second", 1), True)
    expect("late put", await kit.store.put_document("token", "a", b"late", 1), False)
    await kit.reopen()
    expect("after opening", await _standing(kit.store), (b"second", 2))
