"""Keep: the first value under a key stays for its time, and only a current claim can put one there."""

from __future__ import annotations

import asyncio

from holdfast.core.task import Claimed, Hold
from holdfast.stores.contract import Kept, Retention
from holdfast.testing.conformance.registry import Group
from holdfast.testing.expect import expect, expect_true
from holdfast.testing.kit import FOREIGN_TOKEN, LEASE_MS, Kit, ack, every_settlement

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
    expect("first", await kit.store.keep("k", b"1", TTL_MS, _hold(first)), Kept(b"1"))
    expect("by another task", await kit.store.keep("k", b"2", TTL_MS, _hold(second)), Kept(b"1"))
    expect("by the same task", await kit.store.keep("k", b"3", TTL_MS, _hold(first)), Kept(b"1"))
    expect("kept", await kit.store.kept("k"), b"1")


@group.case
async def each_key_has_its_own_value(kit: Kit) -> None:
    """Keys are apart, and one that was never used has no value."""
    claim = await kit.claim()
    await kit.store.keep("k", b"1", TTL_MS, _hold(claim))
    expect("unused key", await kit.store.kept("K"), None)
    await kit.store.keep("K", b"2", TTL_MS, _hold(claim))
    expect("values", [await kit.store.kept("k"), await kit.store.kept("K")], [b"1", b"2"])


@group.case
async def value_is_kept_exactly(kit: Kit) -> None:
    """Any bytes come back as they were sent, empty ones and large ones too, under any key that is allowed."""
    claim = await kit.claim()
    values = [b"", b"null", '{"ä":"\\u0000"}'.encode(), bytes(range(256)), b"x" * 262_144]
    for number, value in enumerate(values):
        key = f"{number}!\"#$%&'()*+,-./:;<=>?@[\\]^_`{{|}}~" + "y" * 100
        expect(f"answer {number}", await kit.store.keep(key, value, TTL_MS, _hold(claim)), Kept(value))
        expect(f"value {number}", await kit.store.kept(key), value)


@group.case
async def repeat_is_the_same_answer(kit: Kit) -> None:
    """The same call again, after a lost reply, is answered alike and gives no more time."""
    claim = await kit.claim()
    first = await kit.store.keep("k", b"1", TTL_MS, _hold(claim))
    kit.clock.advance(TTL_MS - 1)
    expect("repeat", await kit.store.keep("k", b"1", TTL_MS, _hold(claim)), first)
    kit.clock.advance(1)
    expect("after its time", await kit.store.kept("k"), None)


@group.case
async def stale_claim_keeps_nothing(kit: Kit) -> None:
    """A claim that was taken away keeps nothing and is told why; the current one keeps."""
    old, new = await _lost(kit)
    expect("stale", await kit.store.keep("k", b"old", TTL_MS, _hold(old)), Kept(None, "stale_claim"))
    expect("kept by it", await kit.store.kept("k"), None)
    expect("current", await kit.store.keep("k", b"new", TTL_MS, _hold(new)), Kept(b"new"))


@group.case
async def stale_claim_is_told_what_stands_there(kit: Kit) -> None:
    """A claim that was taken away hears of it even where there is a value, and changes nothing."""
    old, new = await _lost(kit)
    await kit.store.keep("k", b"new", TTL_MS, _hold(new))
    expect("stale", await kit.store.keep("k", b"old", TTL_MS, _hold(old)), Kept(b"new", "stale_claim"))
    expect("kept", await kit.store.kept("k"), b"new")


@group.case
async def settled_claim_keeps_nothing(kit: Kit) -> None:
    """However a claim was ended, its token keeps nothing any more."""
    for name in every_settlement(await kit.claim()):
        claim = await kit.claim(queue=f"q-{name.replace(' ', '-')}")
        await kit.apply(every_settlement(claim)[name])
        answer = await kit.store.keep(name.replace(" ", "-"), b"1", TTL_MS, _hold(claim))
        expect(f"after {name}", answer, Kept(None, "stale_claim"))


@group.case
async def unknown_task_keeps_nothing(kit: Kit) -> None:
    """A task that is not there, or a token that was never given, keeps nothing."""
    claim = await kit.claim()
    nobody = await kit.store.keep("k", b"1", TTL_MS, Hold(kit.ids.task_id(), FOREIGN_TOKEN))
    expect("unknown task", nobody, Kept(None, "unknown"))
    foreign = await kit.store.keep("k", b"1", TTL_MS, Hold(claim.task_id, FOREIGN_TOKEN))
    expect("foreign token", foreign, Kept(None, "stale_claim"))
    expect("kept", await kit.store.kept("k"), None)


@group.case
async def lapsed_but_not_requeued_keeps(kit: Kit) -> None:
    """A claim that has run out but was not taken away is still current."""
    claim = await kit.claim()
    kit.clock.advance(LEASE_MS + 5)
    expect("answer", await kit.store.keep("k", b"1", TTL_MS, _hold(claim)), Kept(b"1"))


@group.case
async def keeping_changes_nothing_about_the_task(kit: Kit) -> None:
    """Lease, progress and state of the task are what they were, and the claim can be settled."""
    claim = await kit.claim()
    kit.clock.advance(1_000)
    before = await kit.record(claim.task_id)
    await kit.store.keep("k", b"1", TTL_MS, Hold(claim.task_id, claim.token, b"99"))
    expect("record", await kit.record(claim.task_id), before)
    expect("ack", (await kit.apply(ack(claim))).applied, True)


@group.case
async def value_outlives_its_task(kit: Kit) -> None:
    """A value stays for its own time, also when the task has ended and was pruned."""
    claim = await kit.claim()
    await kit.store.keep("k", b"1", TTL_MS, _hold(claim))
    await kit.apply(ack(claim))
    kit.clock.advance(10)
    expect("pruned", await kit.prune(Retention(succeeded_ms=0)), 1)
    expect("kept", await kit.store.kept("k"), b"1")


@group.case
async def time_runs_by_the_stores_clock(kit: Kit) -> None:
    """A value is there until its time is over and not after it; then the key is free again."""
    claim = await kit.claim()
    await kit.store.keep("k", b"1", TTL_MS, _hold(claim))
    kit.clock.advance(TTL_MS - 1)
    expect("a millisecond before", await kit.store.kept("k"), b"1")
    kit.clock.advance(1)
    expect("when its time is over", await kit.store.kept("k"), None)
    expect("new value", await kit.store.keep("k", b"2", TTL_MS, _hold(claim)), Kept(b"2"))
    kit.clock.advance(TTL_MS - 1)
    expect("for its own time", await kit.store.kept("k"), b"2")


@group.case
async def pruning_counts_what_it_deletes(kit: Kit) -> None:
    """Prune deletes values whose time is over, counts them within its limit, and leaves the others."""
    claim = await kit.claim()
    for n in range(5):
        await kit.store.keep(f"short-{n}", b"1", 1_000, _hold(claim))
    await kit.store.keep("long", b"1", TTL_MS, _hold(claim))
    epoch = await kit.upkeep_epoch()
    kit.clock.advance(999)
    expect("pruned before their time", await kit.store.prune(epoch, Retention(), 2), 0)
    kit.clock.advance(1)
    numbers = [await kit.store.prune(epoch, Retention(), 2) for _ in range(4)]
    expect("pruned by each call", numbers, [2, 2, 1, 0])
    expect("long", await kit.store.kept("long"), b"1")


@group.shared
async def value_survives(kit: Kit) -> None:
    """A value is there after the store was closed and opened, and for everyone who opens it."""
    claim = await kit.claim()
    await kit.store.keep("k", b"1", TTL_MS, _hold(claim))
    other = await kit.another()
    expect("seen by another", await other.kept("k"), b"1")
    await kit.reopen()
    expect("seen after opening again", await kit.store.kept("k"), b"1")


@group.case
async def one_key_for_all_queues(kit: Kit) -> None:
    """Tasks of different queues, which may lie in different partitions, meet under the same key."""
    claims = [await kit.claim(queue=queue) for queue in QUEUES]
    for key in KEYS:
        answers = [await kit.store.keep(key, b"%d" % n, TTL_MS, _hold(claim)) for n, claim in enumerate(claims)]
        expect(f"values under {key}", answers, [Kept(b"0")] * len(claims))


@group.case
async def stale_claims_of_all_queues_are_refused(kit: Kit) -> None:
    """The claim counts wherever the key lies: with several partitions too."""
    for queue in QUEUES:
        old, _ = await _lost(kit, queue)
        for key in KEYS:
            answer = await kit.store.keep(key, b"old", TTL_MS, _hold(old))
            expect(f"{key} of queue {queue}", answer, Kept(None, "stale_claim"))


@group.shared
async def first_of_many_at_once_wins(kit: Kit) -> None:
    """Of concurrent values under one key, through two opened stores, one is kept, and all are told which."""
    stores = [kit.store, await kit.another()]
    claims = [await kit.claim() for _ in range(20)]
    for key in KEYS[:3]:
        calls = [stores[n % 2].keep(key, b"%d" % n, TTL_MS, _hold(claim)) for n, claim in enumerate(claims)]
        answers = await asyncio.gather(*calls)
        expect("values told", len({answer.value for answer in answers}), 1)
        expect_true("one of those that were sent", answers[0].value in [b"%d" % n for n in range(20)])
        expect("kept", await kit.store.kept(key), answers[0].value)


@group.case
async def without_a_hold_nothing_is_checked(kit: Kit) -> None:
    """A caller that has looked after the claim itself keeps without one; the first value stays all the same."""
    expect("first", await kit.store.keep("k", b"1", TTL_MS, None), Kept(b"1"))
    expect("second", await kit.store.keep("k", b"2", TTL_MS, None), Kept(b"1"))
