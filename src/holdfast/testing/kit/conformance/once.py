"""Memos of `once`: the first value under a key stays for its time, and only a current claim can store one."""

from __future__ import annotations

import asyncio

from holdfast.core.task import Claimed, Hold
from holdfast.stores import documents
from holdfast.stores.contract import Retention
from holdfast.stores.documents import Memo
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, expect_true
from holdfast.testing.kit.kit import FOREIGN_TOKEN, KEEP_NOTHING, LEASE_MS, Kit, ack, every_settlement

group = Group("once")

TTL_MS = 60_000
#: With several partitions, keys and tasks of these lie in different ones, and in the same.
QUEUES = tuple("abcdef")
KEYS = tuple(f"step-{n}" for n in range(6))


def _hold(claim: Claimed) -> Hold:
    return Hold(claim.task_id, claim.token)


async def _lost(kit: Kit, queue: str = "default") -> tuple[Claimed, Claimed]:
    """A claim that was taken away, and the one that followed it."""
    old = await kit.claim(queue=queue)
    kit.clock.advance(LEASE_MS)
    await kit.requeue_expired()
    return old, await kit.reserve_one(queues=(queue,))


@group.case
async def first_value_stays(kit: Kit) -> None:
    """A second value under the same key, by the same or another task, is answered with the first."""
    first, second = await kit.claim(), await kit.claim()
    expect("first", await documents.keep(kit.store, "k", b"1", TTL_MS, _hold(first)), Memo(b"1"))
    expect("by another task", await documents.keep(kit.store, "k", b"2", TTL_MS, _hold(second)), Memo(b"1"))
    expect("by the same task", await documents.keep(kit.store, "k", b"3", TTL_MS, _hold(first)), Memo(b"1"))
    expect("kept", await documents.kept(kit.store, "k"), b"1")


@group.case
async def each_key_has_its_own_value(kit: Kit) -> None:
    """Keys are apart, and one that was never used has no value."""
    claim = await kit.claim()
    await documents.keep(kit.store, "k", b"1", TTL_MS, _hold(claim))
    expect("unused key", await documents.kept(kit.store, "K"), None)
    await documents.keep(kit.store, "K", b"2", TTL_MS, _hold(claim))
    expect("values", [await documents.kept(kit.store, "k"), await documents.kept(kit.store, "K")], [b"1", b"2"])


@group.case
async def value_is_kept_exactly(kit: Kit) -> None:
    """Any bytes come back as they were sent, empty ones and large ones too, under any key that is allowed."""
    claim = await kit.claim()
    values = [b"", b"null", '{"ä":"\\u0000"}'.encode(), bytes(range(256)), b"x" * 262_144]
    for number, value in enumerate(values):
        key = f"{number}!\"#$%&'()*+,-./:;<=>?@[\\]^_`{{|}}~" + "y" * 100
        expect(f"answer {number}", await documents.keep(kit.store, key, value, TTL_MS, _hold(claim)), Memo(value))
        expect(f"value {number}", await documents.kept(kit.store, key), value)


@group.case
async def repeat_is_the_same_answer(kit: Kit) -> None:
    """The same call again, after a lost reply, is answered alike and gives no more time."""
    claim = await kit.claim()
    first = await documents.keep(kit.store, "k", b"1", TTL_MS, _hold(claim))
    kit.clock.advance(TTL_MS - 1)
    expect("repeat", await documents.keep(kit.store, "k", b"1", TTL_MS, _hold(claim)), first)
    kit.clock.advance(1)
    expect("after its time", await documents.kept(kit.store, "k"), None)


@group.case
async def stale_claim_keeps_nothing(kit: Kit) -> None:
    """A claim that was taken away keeps nothing and is told why; the current one keeps."""
    old, new = await _lost(kit)
    expect("stale", await documents.keep(kit.store, "k", b"old", TTL_MS, _hold(old)), Memo(None, "stale_claim"))
    expect("kept by it", await documents.kept(kit.store, "k"), None)
    expect("current", await documents.keep(kit.store, "k", b"new", TTL_MS, _hold(new)), Memo(b"new"))


@group.case
async def stale_claim_is_told_what_is_there(kit: Kit) -> None:
    """A claim that was taken away hears of it even where there is a value, and changes nothing."""
    old, new = await _lost(kit)
    await documents.keep(kit.store, "k", b"new", TTL_MS, _hold(new))
    expect("stale", await documents.keep(kit.store, "k", b"old", TTL_MS, _hold(old)), Memo(b"new", "stale_claim"))
    expect("kept", await documents.kept(kit.store, "k"), b"new")


@group.case
async def settled_claim_keeps_nothing(kit: Kit) -> None:
    """However a claim was ended, its token keeps nothing any more."""
    for name in every_settlement(await kit.claim()):
        claim = await kit.claim(queue=f"q-{name.replace(' ', '-')}")
        await kit.apply(every_settlement(claim)[name])
        answer = await documents.keep(kit.store, name.replace(" ", "-"), b"1", TTL_MS, _hold(claim))
        expect(f"after {name}", answer, Memo(None, "stale_claim"))


@group.case
async def unknown_task_keeps_nothing(kit: Kit) -> None:
    """A task that is not there, or a token that was never given, keeps nothing."""
    claim = await kit.claim()
    answer = await documents.keep(kit.store, "k", b"1", TTL_MS, Hold(kit.ids.task_id(), FOREIGN_TOKEN))
    expect("unknown task", answer, Memo(None, "unknown"))
    foreign = await documents.keep(kit.store, "k", b"1", TTL_MS, Hold(claim.task_id, FOREIGN_TOKEN))
    expect("foreign token", foreign, Memo(None, "stale_claim"))
    expect("kept", await documents.kept(kit.store, "k"), None)


@group.case
async def expired_but_not_requeued_is_current(kit: Kit) -> None:
    """A claim whose lease has expired but that was not taken away is still current."""
    claim = await kit.claim()
    kit.clock.advance(LEASE_MS + 5)
    expect("answer", await documents.keep(kit.store, "k", b"1", TTL_MS, _hold(claim)), Memo(b"1"))


@group.case
async def keeping_changes_nothing_about_the_task(kit: Kit) -> None:
    """Lease, progress and state of the task are what they were, and the claim can be settled."""
    claim = await kit.claim()
    kit.clock.advance(1_000)
    before = await kit.record(claim.task_id)
    await documents.keep(kit.store, "k", b"1", TTL_MS, Hold(claim.task_id, claim.token, b"99"))
    expect("record", await kit.record(claim.task_id), before)
    expect("ack", (await kit.apply(ack(claim))).applied, True)


@group.case
async def value_outlives_its_task(kit: Kit) -> None:
    """A value stays for its own time, also when the task has ended and was pruned."""
    claim = await kit.claim()
    await documents.keep(kit.store, "k", b"1", TTL_MS, _hold(claim))
    await kit.apply(ack(claim))
    kit.clock.advance(10)
    expect("pruned", await kit.prune(KEEP_NOTHING), 1)
    expect("kept", await documents.kept(kit.store, "k"), b"1")


@group.case
async def time_runs_by_the_stores_clock(kit: Kit) -> None:
    """A value is there until its time is over and not after it; then the key is free again."""
    claim = await kit.claim()
    await documents.keep(kit.store, "k", b"1", TTL_MS, _hold(claim))
    kit.clock.advance(TTL_MS - 1)
    expect("a millisecond before", await documents.kept(kit.store, "k"), b"1")
    kit.clock.advance(1)
    expect("when its time is over", await documents.kept(kit.store, "k"), None)
    expect("new value", await documents.keep(kit.store, "k", b"2", TTL_MS, _hold(claim)), Memo(b"2"))
    kit.clock.advance(TTL_MS - 1)
    expect("for its own time", await documents.kept(kit.store, "k"), b"2")


@group.case
async def pruning_counts_what_it_deletes(kit: Kit) -> None:
    """Prune deletes values whose time is over, counts them within its limit, and leaves the others."""
    claim = await kit.claim()
    for n in range(5):
        await documents.keep(kit.store, f"short-{n}", b"1", 1_000, _hold(claim))
    await documents.keep(kit.store, "long", b"1", TTL_MS, _hold(claim))
    epoch = await kit.leader_epoch()
    kit.clock.advance(999)
    expect("pruned before their time", await kit.store.prune(epoch, Retention(), 2), 0)
    kit.clock.advance(1)
    numbers = [await kit.store.prune(epoch, Retention(), 2) for _ in range(4)]
    expect("pruned by each call", numbers, [2, 2, 1, 0])
    expect("long", await documents.kept(kit.store, "long"), b"1")


@group.shared
async def value_survives(kit: Kit) -> None:
    """A value is there after the store was closed and opened, and for every process that opens it."""
    claim = await kit.claim()
    await documents.keep(kit.store, "k", b"1", TTL_MS, _hold(claim))
    other = await kit.another()
    expect("seen by another", await documents.kept(other, "k"), b"1")
    await kit.reopen()
    expect("seen after opening again", await documents.kept(kit.store, "k"), b"1")


@group.case
async def one_key_for_all_queues(kit: Kit) -> None:
    """Tasks of different queues, which may lie in different partitions, meet under the same key."""
    claims = [await kit.claim(queue=queue) for queue in QUEUES]
    for key in KEYS:
        answers = [
            await documents.keep(kit.store, key, b"%d" % n, TTL_MS, _hold(claim)) for n, claim in enumerate(claims)
        ]
        expect(f"values under {key}", answers, [Memo(b"0")] * len(claims))


@group.case
async def stale_claims_of_all_queues_are_refused(kit: Kit) -> None:
    """The claim counts wherever the key lies: with several partitions too."""
    for queue in QUEUES:
        old, _ = await _lost(kit, queue)
        for key in KEYS:
            answer = await documents.keep(kit.store, key, b"old", TTL_MS, _hold(old))
            expect(f"{key} of queue {queue}", answer, Memo(None, "stale_claim"))


@group.shared
async def first_of_many_at_once_wins(kit: Kit) -> None:
    """Of concurrent values under one key, through two opened stores, one is kept, and all are told which."""
    stores = [kit.store, await kit.another()]
    claims = [await kit.claim() for _ in range(20)]
    for key in KEYS[:3]:
        calls = [documents.keep(stores[n % 2], key, b"%d" % n, TTL_MS, _hold(claim)) for n, claim in enumerate(claims)]
        answers = await asyncio.gather(*calls)
        expect("values told", len({answer.value for answer in answers}), 1)
        expect_true("one of those that were sent", answers[0].value in [b"%d" % n for n in range(20)])
        expect("kept", await documents.kept(kit.store, key), answers[0].value)


@group.case
async def without_a_hold_nothing_is_checked(kit: Kit) -> None:
    """A caller that has looked after the claim itself keeps without one; the first value stays all the same."""
    expect("first", await documents.keep(kit.store, "k", b"1", TTL_MS, None), Memo(b"1"))
    expect("second", await documents.keep(kit.store, "k", b"2", TTL_MS, None), Memo(b"1"))
