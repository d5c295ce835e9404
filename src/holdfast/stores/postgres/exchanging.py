"""What travels with a reserve, and what comes back: verdicts, claimed tasks, floors to remember, bells to ring."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from holdfast.clock import SystemClock
from holdfast.core.lifecycle import Change, Event, Verdict, target
from holdfast.core.priority import AGED_STEP_MS
from holdfast.core.task import Claimed, State
from holdfast.stores.contract import Reserve, Reserved
from holdfast.stores.postgres import reading
from holdfast.stores.postgres.floors import Floor, Floors
from holdfast.stores.postgres.sending import Sent, change_columns
from holdfast.stores.single import stale_map

if TYPE_CHECKING:
    from holdfast.stores.postgres.calls import Calls
    from holdfast.stores.postgres.database import Database

_ACKED: Final = Verdict(True, state=target(State.CLAIMED, Event.ACK))


class Exchanges:
    """Settles and reserves for one store, which remembers names and floors of lanes."""

    def __init__(self, calls: Calls, database: Database) -> None:
        self._call = calls
        self._database = database
        self._floors = Floors(SystemClock().monotonic_ms)
        self._lanes: dict[int, tuple[str, str, int]] = {}

    async def apply(self, changes: Sequence[Change]) -> list[Verdict]:
        """Executes changes."""
        sent = change_columns(changes)
        verdicts = [_ACKED] * len(changes)
        rows = await self._call("apply", self._call.now(), *sent.columns, safe=True)
        for place, applied, repeated, reason, state, bell in rows:
            verdicts[_place(sent, place)] = reading.verdict(applied, repeated, reason, state)
            if bell is not None:
                self._database.ring([bell])
        return verdicts

    async def reserve(self, request: Reserve, settle: Sequence[Change], map_version: int) -> Reserved:
        """Settles the last batch and claims the next in one call."""
        sent = change_columns(settle)
        rows = await self._call(
            "hand_over",
            self._call.now(),
            map_version,
            *sent.columns,
            request.claim_id,
            request.worker_id,
            secrets.token_hex(8) if request.fresh else None,
            [share.queue for share in request.shares],
            [share.limit for share in request.shares],
            request.max_tasks,
            request.lease_ms,
            None if request.types is None else list(request.types),
            *self._floors.columns(),
            safe=True,
        )
        return await self._reserved(request, sent, rows, len(settle))

    async def _reserved(self, request: Reserve, sent: Sent, rows: Sequence[Any], settled: int) -> Reserved:
        verdicts = [_ACKED] * settled
        tasks: list[Claimed] = []
        claim_id = request.claim_id
        for row in rows:
            kind, lane, task_id, attempt, deliveries, number, created_at, claimed_at, payload, headers, policy, rank = (
                row
            )
            if kind == "task":
                queue, task_type, priority = self._lanes.get(lane) or await self._lane(lane)
                tasks.append(
                    Claimed(
                        task_id,
                        f"{number}.{deliveries}.{claim_id}",
                        task_type,
                        queue,
                        payload,
                        reading.headers_of(headers),
                        priority,
                        reading.policy_of(policy),
                        attempt,
                        created_at,
                        claimed_at,
                        rank + priority * AGED_STEP_MS,
                    )
                )
            elif kind == "verdict":
                answer = reading.verdict(deliveries >= 2, deliveries == 3, headers, policy)
                verdicts[_place(sent, attempt)] = answer
            elif kind == "floor":
                self._floors.learn(lane, Floor(deliveries, number, task_id))
            elif kind == "bell":
                self._database.ring([headers])
            else:
                raise stale_map(self._database.url, number)
        if len(tasks) < request.max_tasks:
            self._floors.forget()
        return Reserved(tasks, verdicts)

    async def _lane(self, lane: int) -> tuple[str, str, int]:
        """Queue, type and priority of a lane; lanes never change, so all are fetched when one is new."""
        self._lanes.update({row[0]: row[1:] for row in await self._call("lane_names")})
        return self._lanes[lane]


def _place(sent: Sent, place: int) -> int:
    """Where the caller has the change of a verdict: acks are numbered among themselves, from -1 down."""
    return sent.ack_places[-place - 1] if place < 0 else place
