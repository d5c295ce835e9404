"""What travels with a reserve, and what comes back: verdicts, claimed tasks, cursors to remember, wake-ups to send.

The tasks of one queue, type and priority form a group (a row of the table `lanes`). A cursor says from where on a group
may have a task to claim. Claimed rows stay in the index until they are cleaned up, and a held snapshot keeps them.
A claimer that remembers where it stopped does not walk over them again. A task that is committed late, below a cursor,
is found when cursors are forgotten, after a second, or by the sweep of the maintenance leader.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from holdfast.clock import SystemClock
from holdfast.core.lifecycle import Change, Event, Verdict, target
from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.task import Claimed, State
from holdfast.stores.contract import Reserve, Reserved
from holdfast.stores.decode import Unreadable, bury_unreadable, headers_of, policy_of
from holdfast.stores.decorate import stale_map
from holdfast.stores.postgres import answers
from holdfast.stores.postgres.arguments import Sent, change_columns, reservation
from holdfast.stores.postgres.encoding import Composite, composite, int4_array, int8_array, uuid_array, uuids

if TYPE_CHECKING:
    from holdfast.stores.postgres.calls import Calls, Database


_FORGET_MS: Final = 1_000
_MOST: Final = 200


class Cursor(NamedTuple):
    """A cursor: the last place that was claimed in a group, while nothing was put back into it."""

    turn: int
    rank: int
    task_id: str


class Cursors:
    """The cursors of one process, one for each group that it claims from."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._forget_at_ms = 0
        self._cursors: dict[int, Cursor] = {}

    def composite(self) -> Composite:
        """All that is remembered, as `hand_over` takes it."""
        now_ms = self._monotonic_ms()
        if now_ms >= self._forget_at_ms or len(self._cursors) > _MOST:
            self._cursors.clear()
            self._forget_at_ms = now_ms + _FORGET_MS
        cursors = self._cursors.values()
        return composite(
            int4_array(list(self._cursors)),
            int4_array([cursor.turn for cursor in cursors]),
            int8_array([cursor.rank for cursor in cursors]),
            uuid_array(uuids([cursor.task_id for cursor in cursors])),
        )

    def learn(self, lane: int, cursor: Cursor) -> None:
        """Remembers how far a group has been claimed."""
        self._cursors[lane] = cursor

    def forget(self) -> None:
        """Looks everywhere the next time."""
        self._cursors.clear()


#: Groups whose queue, type and priority one process remembers.
_MOST_LANES: Final = 10_000
_ACKED: Final = Verdict(True, state=target(State.CLAIMED, Event.ACK))


class Exchanges:
    """Settles and reserves for one store, and remembers the names and cursors of its groups."""

    def __init__(self, calls: Calls, database: Database) -> None:
        self._call = calls
        self._database = database
        self._cursors = Cursors(SystemClock().monotonic_ms)
        self._lanes: dict[int, tuple[str, str, int]] = {}

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Executes changes."""
        sent = change_columns(changes)
        verdicts = [_ACKED] * len(changes)
        rows = await self._call("apply", self._call.now(), *sent.columns, safe=True)
        for place, applied, repeated, reason, state, wakeup in rows:
            verdicts[_place(sent, place)] = answers.verdict(applied, repeated, reason, state)
            if wakeup is not None:
                self._database.notify([wakeup])
        return verdicts

    async def reserve(self, request: Reserve, settle: Sequence[Change]) -> Reserved:
        """Settles the last batch and claims the next in one call."""
        sent = change_columns(settle)
        rows = await self._call(
            "hand_over",
            self._call.now(),
            sent.settlement(),
            reservation(request, secrets.token_hex(8) if request.fresh else None),
            self._cursors.composite(),
            safe=True,
        )
        return await self._reserved(request, sent, rows, len(settle))

    async def _reserved(self, request: Reserve, sent: Sent, rows: Sequence[Any], settled: int) -> Reserved:
        verdicts = [_ACKED] * settled
        tasks: list[Claimed] = []
        unreadable: list[Change] = []
        cut = False
        claim_id = request.claim_id
        await self._learn_lanes({row[1] for row in rows if row[0] == "task"})
        for row in rows:
            kind, lane, task_id, attempt, deliveries, number, created_at, claimed_at, payload, headers, policy, rank = (
                row
            )
            if kind == "task":
                queue, task_type, priority = self._lanes[lane]
                token = f"{number}.{deliveries}.{claim_id}"
                try:
                    tasks.append(
                        Claimed(
                            task_id,
                            token,
                            task_type,
                            queue,
                            payload,
                            headers_of(headers),
                            priority,
                            policy_of(policy),
                            attempt,
                            created_at,
                            claimed_at,
                            rank + priority * AGED_STEP_MS,
                        )
                    )
                except Unreadable as error:
                    unreadable.append(bury_unreadable(task_id, token, error))
            elif kind == "verdict":
                answer = answers.verdict(deliveries >= 2, deliveries == 3, headers, policy)
                verdicts[_place(sent, attempt)] = answer
            elif kind == "floor":
                self._cursors.learn(lane, Cursor(deliveries, number, task_id))
                cut = bool(attempt)
            elif kind == "wakeup":
                self._database.notify([headers])
            else:
                raise stale_map(self._database.url, number)
        if len(tasks) < request.max_tasks:
            self._cursors.forget()
        if unreadable:
            # None of the others has to wait for them, and none of them comes again.
            await self.apply(unreadable)
        return Reserved(tasks, verdicts, cut)

    async def _learn_lanes(self, lanes: set[int]) -> None:
        """Looks up queue, type and priority of these groups, which never change."""
        unknown = lanes.difference(self._lanes)
        if unknown:
            if len(self._lanes) > _MOST_LANES:
                self._lanes.clear()
                unknown = lanes
            self._lanes.update({row[0]: row[1:] for row in await self._call("lane_names", list(unknown))})


def _place(sent: Sent, place: int) -> int:
    """Where the caller has the change of a verdict: acks are numbered among themselves, from -1 down."""
    return sent.ack_places[-place - 1] if place < 0 else place
