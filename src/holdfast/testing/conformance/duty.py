"""Duties: one holder at a time, and an epoch that grows with every change."""

from __future__ import annotations

from holdfast.testing.conformance.registry import Group
from holdfast.testing.expect import expect, expect_true
from holdfast.testing.kit import Kit

group = Group("duty")


@group.case
async def first_one_holds_it(kit: Kit) -> None:
    """A free duty is held by the first who asks, for its time to live."""
    duty = await kit.store.hold_duty("d", "a", 10_000)
    expect("duty", (duty.name, duty.owner, duty.held), ("d", "a", True))
    expect_true("the epoch is at least 1", duty.epoch >= 1)
    expect("expires in", duty.expires_in_ms, 10_000)


@group.case
async def second_one_is_told_who_holds_it(kit: Kit) -> None:
    """While one holds a duty, another does not get it, and hears who has it and for how long."""
    mine = await kit.store.hold_duty("d", "a", 10_000)
    kit.clock.advance(4_000)
    other = await kit.store.hold_duty("d", "b", 10_000)
    expect("answer", (other.owner, other.held, other.epoch), ("a", False, mine.epoch))
    expect("expires in", other.expires_in_ms, 6_000)


@group.case
async def holder_keeps_it_and_its_epoch(kit: Kit) -> None:
    """A holder that comes back in time keeps the duty, the epoch unchanged."""
    first = await kit.store.hold_duty("d", "a", 10_000)
    for _ in range(3):
        kit.clock.advance(9_000)
        again = await kit.store.hold_duty("d", "a", 10_000)
        expect("answer", (again.held, again.epoch), (True, first.epoch))


@group.case
async def epoch_grows_with_a_new_holder(kit: Kit) -> None:
    """When its time has run out, another gets the duty under a larger epoch."""
    first = await kit.store.hold_duty("d", "a", 10_000)
    kit.clock.advance(10_001)
    second = await kit.store.hold_duty("d", "b", 10_000)
    expect("held", second.held, True)
    expect_true("the epoch has grown", second.epoch > first.epoch)
    back = await kit.store.hold_duty("d", "a", 10_000)
    expect("the former holder", (back.held, back.owner), (False, "b"))


@group.case
async def epoch_grows_when_a_holder_was_away(kit: Kit) -> None:
    """A holder that comes back after its time ran out gets a larger epoch."""
    first = await kit.store.hold_duty("d", "a", 10_000)
    kit.clock.advance(10_001)
    again = await kit.store.hold_duty("d", "a", 10_000)
    expect("held", again.held, True)
    expect_true("the epoch has grown", again.epoch > first.epoch)


@group.case
async def let_go_is_free_at_once(kit: Kit) -> None:
    """A duty that is let go can be taken at once, under a larger epoch."""
    first = await kit.store.hold_duty("d", "a", 10_000)
    left = await kit.store.hold_duty("d", "a", 0)
    expect("held after letting go", left.held, False)
    second = await kit.store.hold_duty("d", "b", 10_000)
    expect("held", second.held, True)
    expect_true("the epoch has grown", second.epoch > first.epoch)


@group.case
async def others_cannot_let_go(kit: Kit) -> None:
    """Letting go of a duty that another holds changes nothing."""
    first = await kit.store.hold_duty("d", "a", 10_000)
    await kit.store.hold_duty("d", "b", 0)
    again = await kit.store.hold_duty("d", "a", 10_000)
    expect("answer", (again.held, again.epoch), (True, first.epoch))


@group.case
async def duties_are_apart(kit: Kit) -> None:
    """Two duties have two holders."""
    await kit.store.hold_duty("d", "a", 10_000)
    expect("held", (await kit.store.hold_duty("e", "b", 10_000)).held, True)
