"""What a pruning may delete: finished tasks whose time is over, or too many, those with the least time left first."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

from holdfast.core.ids import partition_of
from holdfast.core.task import FINAL_STATES, kept_ms
from holdfast.stores.contract import Retention
from holdfast.testing.kit.expect import expect, expect_true
from holdfast.testing.kit.model.entry import Entry


def expect_pruned(entries: Mapping[str, Entry], retention: Retention, gone: set[str], now_ms: int) -> None:
    """Fails unless those that went had to go."""
    for state, partition in product(FINAL_STATES, {partition_of(task_id) for task_id in entries}):
        own = [entry for task_id, entry in entries.items() if partition_of(task_id) == partition]
        finished = [entry for entry in own if entry.standing.state is state]
        ends = sorted(_kept_until_ms(entry) for entry in finished)
        left = [entry for entry in finished if entry.envelope.task_id not in gone]
        too_many = len(finished) - retention.keep
        least = max(too_many, sum(end < now_ms for end in ends), 0)
        most = max(too_many, sum(end <= now_ms for end in ends), 0)
        number = len(finished) - len(left)
        expect_true(f"{least} to {most} tasks are pruned as {state}, not {number}", least <= number <= most)
        kept = sorted(_kept_until_ms(entry) for entry in left)
        expect(f"ends of the {state} tasks that are kept", kept, ends[number:])
    unfinished = [task_id for task_id in gone if entries[task_id].standing.state not in FINAL_STATES]
    expect("unfinished tasks that were pruned", unfinished, [])


def _kept_until_ms(entry: Entry) -> int:
    return (entry.standing.finished_at_ms or 0) + kept_ms(entry.envelope.policy, entry.standing.state)
