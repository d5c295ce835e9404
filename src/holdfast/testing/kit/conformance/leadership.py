"""Leadership: one leader at a time, and an epoch that grows with every change."""

from __future__ import annotations

from holdfast.stores.contract import Leadership
from holdfast.testing.kit.conformance.registry import Group
from holdfast.testing.kit.expect import expect, expect_true
from holdfast.testing.kit.kit import Kit

group = Group("leadership")


@group.case
async def first_one_leads(kit: Kit) -> None:
    """A leadership that is free goes to the first owner that asks, for its time to live."""
    leads = await kit.store.lead("d", "a", 10_000)
    expect("leadership", (leads.name, leads.owner, leads.held), ("d", "a", True))
    expect_true("the epoch is at least 1", leads.epoch >= 1)
    expect("expires in", leads.expires_in_ms, 10_000)


@group.case
async def second_one_is_told_who_leads(kit: Kit) -> None:
    """While one owner leads, another does not, and hears who leads and for how long."""
    mine = await kit.store.lead("d", "a", 10_000)
    kit.clock.advance(4_000)
    other = await kit.store.lead("d", "b", 10_000)
    expect("answer", (other.owner, other.held, other.epoch), ("a", False, mine.epoch))
    expect("expires in", other.expires_in_ms, 6_000)


@group.case
async def leader_stays_with_its_epoch(kit: Kit) -> None:
    """A leader that renews in time stays, the epoch unchanged."""
    first = await kit.store.lead("d", "a", 10_000)
    for _ in range(3):
        kit.clock.advance(9_000)
        again = await kit.store.lead("d", "a", 10_000)
        expect("answer", (again.held, again.epoch), (True, first.epoch))


@group.case
async def epoch_grows_with_a_new_leader(kit: Kit) -> None:
    """When its time is over, another owner leads under a larger epoch."""
    first = await kit.store.lead("d", "a", 10_000)
    kit.clock.advance(10_001)
    second = await kit.store.lead("d", "b", 10_000)
    expect("held", second.held, True)
    expect_true("the epoch has grown", second.epoch > first.epoch)
    back = await kit.store.lead("d", "a", 10_000)
    expect("the former leader", (back.held, back.owner), (False, "b"))


@group.case
async def epoch_grows_when_a_leader_was_away(kit: Kit) -> None:
    """A leader that comes back after its time was over gets a larger epoch."""
    first = await kit.store.lead("d", "a", 10_000)
    kit.clock.advance(10_001)
    again = await kit.store.lead("d", "a", 10_000)
    expect("held", again.held, True)
    expect_true("the epoch has grown", again.epoch > first.epoch)


@group.case
async def clock_that_is_set_back_frees_it_in_its_time(kit: Kit) -> None:
    """A leadership of a clock that was ahead lasts for its time to live after the clock was set back, and no longer."""
    first = await kit.store.lead("d", "a", 10_000)
    kit.clock.advance(-3_600_000)
    other = await kit.store.lead("d", "b", 10_000)
    expect("answer", (other.owner, other.held, other.expires_in_ms), ("a", False, 10_000))
    kit.clock.advance(10_001)
    second = await kit.store.lead("d", "b", 10_000)
    expect("held", second.held, True)
    expect_true("the epoch has grown", second.epoch > first.epoch)


@group.case
async def let_go_is_free_at_once(kit: Kit) -> None:
    """A leadership that is let go can be taken at once, under a larger epoch."""
    first = await kit.store.lead("d", "a", 10_000)
    left = await kit.store.lead("d", "a", 0)
    expect("held after letting go", left.held, False)
    second = await kit.store.lead("d", "b", 10_000)
    expect("held", second.held, True)
    expect_true("the epoch has grown", second.epoch > first.epoch)


@group.case
async def others_cannot_let_go(kit: Kit) -> None:
    """Letting go of a leadership that another owner has changes nothing."""
    first = await kit.store.lead("d", "a", 10_000)
    await kit.store.lead("d", "b", 0)
    again = await kit.store.lead("d", "a", 10_000)
    expect("answer", (again.held, again.epoch), (True, first.epoch))


@group.case
async def names_are_apart(kit: Kit) -> None:
    """Two leaderships have two leaders."""
    await kit.store.lead("d", "a", 10_000)
    expect("held", (await kit.store.lead("e", "b", 10_000)).held, True)


@group.case
async def looking_changes_nothing(kit: Kit) -> None:
    """A caller without an owner hears who leads and for how long, and neither takes, renews nor ends anything."""
    for _ in range(2):
        none = await kit.store.lead("d", None, 10_000)
        expect("before there was a leader", (none.name, none.owner, none.held), ("d", "", False))
    first = await kit.store.lead("d", "a", 10_000)
    for left_ms in (10_000, 6_000, 2_000):
        for ttl_ms in (0, 50_000):
            seen = Leadership("d", "a", first.epoch, held=False, expires_in_ms=left_ms)
            expect(f"with {left_ms} ms left", await kit.store.lead("d", None, ttl_ms), seen)
        kit.clock.advance(4_000)
    over = await kit.store.lead("d", None)
    expect("after its time", (over.owner, over.epoch, over.held), ("", first.epoch, False))
    second = await kit.store.lead("d", "b", 10_000)
    expect("held by the next one", second.held, True)
    expect_true("the epoch has grown", second.epoch > first.epoch)


@group.case
async def looking_at_a_leadership_of_the_future(kit: Kit) -> None:
    """After the clock was set back, a look finds no more than the time to live that was asked for."""
    first = await kit.store.lead("d", "a", 10_000)
    kit.clock.advance(-3_600_000)
    seen = await kit.store.lead("d", None)
    expect("leader", (seen.owner, seen.epoch, seen.held), ("a", first.epoch, False))
    expect_true(f"{seen.expires_in_ms} ms is not longer than its own time", 0 < seen.expires_in_ms <= 10_000)
