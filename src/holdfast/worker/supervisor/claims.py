"""What a worker does at its store for all of its children: heartbeats, maintenance, settling orphaned claims."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from itertools import chain

from msgspec.structs import replace

from holdfast.admin.schedules import keep_declared
from holdfast.clock import Clock
from holdfast.core import lifecycle
from holdfast.core.declared import DECLARED_TTL_MS
from holdfast.core.durations import format_ms
from holdfast.core.fairness import QueueShare, queue_order
from holdfast.core.ids import partition_of
from holdfast.core.lifecycle import Change
from holdfast.core.retry import error_name
from holdfast.core.schedule.record import Schedule
from holdfast.core.task import Failure
from holdfast.errors import BadApp, BadUrl, HoldfastError, TimedOut
from holdfast.maintenance.service import Maintenance
from holdfast.observe.task_log import log_settled
from holdfast.stores import documents
from holdfast.stores.contract import MAX_BATCH, Reserve, Store, WorkerRecord
from holdfast.stores.open import open_store
from holdfast.worker.backoff import Backoff, persistently
from holdfast.worker.options import WorkerOptions
from holdfast.worker.protocol import HeldTask, Hello
from holdfast.worker.supervisor.heartbeat import Heartbeat
from holdfast.worker.supervisor.pool import ChildPool
from holdfast.worker.supervisor.process import ChildProcess, KillReason, describe_kill

_log = logging.getLogger("holdfast.worker")

#: When, after the exit of a child, it is checked again for tasks that its last reserve may have claimed: a server
#: goes on with a call also when the client is gone.
ORPHAN_CHECKS_S = (0.5, 2.0, 10.0)
#: How long a worker that starts waits for a store that does not answer, before it exits.
STORE_WAIT_S = 300.0
#: How many of the tasks that were lost with a child have a log line each.
MAX_LOST_LOGGED = 50
#: After an error, the task types are published again after this long.
PUBLISH_AGAIN_S = 300.0
#: How long the last calls to the store may take, all of them together.
LAST_CALLS_S = 5.0


class WorkerClaims:
    """The claims of a worker that its store knows of, and the worker's own record there."""

    def __init__(self, store: Store, hello: Hello, options: WorkerOptions, pool: ChildPool, clock: Clock) -> None:
        self.store = store
        self.hello = hello
        self._options = options
        #: Those that the latest child serves, and all that any child has served.
        self.queues = queue_order(options.queues, hello.queues).queues
        self._all_queues = dict.fromkeys(self.queues)
        self._pool = pool
        self._declared_anew = asyncio.Event()
        self._types_anew = asyncio.Event()
        #: Exited children whose last reserve may still commit; re-checked three times.
        self._orphan_checks: dict[asyncio.Task[None], ChildProcess] = {}
        self.heartbeat = Heartbeat(store, hello.lease_ms, clock, pool, self._record)

    @classmethod
    async def open(
        cls,
        hello: Hello,
        options: WorkerOptions,
        pool: ChildPool,
        clock: Clock,
        observed: Callable[[Store], Store],
    ) -> WorkerClaims:
        """Opens the store that the first child names, and announces the worker there."""
        if hello.url.rstrip("/") == "sqlite:":
            raise BadUrl("sqlite:// lives in the memory of one process; a worker needs a file: sqlite:///holdfast.db")
        claims = cls(observed(open_store(hello.url)), hello, options, pool, clock)
        try:
            await _reached(lambda: claims.store.announce(claims._record(), hello.lease_ms))
        except BaseException:
            await claims.store.close()
            raise
        return claims

    def renew(self, hello: Hello) -> None:
        """A later child may have other types and schedules, but not another store: its claims would not be renewed."""
        if (hello.url, hello.lease_ms) != (self.hello.url, self.hello.lease_ms):
            raise BadApp("the app names another store or lease than before; start the worker anew")
        known = self.hello.schedules
        self.hello = hello
        self.queues = queue_order(self._options.queues, hello.queues).queues
        self._all_queues.update(dict.fromkeys(self.queues))
        self._types_anew.set()
        if known != hello.schedules:
            self._declared_anew.set()

    async def settle(self, child: ChildProcess, how_it_ended: str) -> int:
        """Settles the claims of an exited child; gives how many were settled."""
        settled = await self._settle(child, how_it_ended)
        if not child.drained:
            checking = asyncio.create_task(self._check_again(child, how_it_ended))
            self._orphan_checks[checking] = child
            checking.add_done_callback(self._orphan_checks.pop)
        return settled

    async def _settle(self, child: ChildProcess, how_it_ended: str) -> int:
        settled = await settle_orphans(self.store, child, tuple(self._all_queues), self.hello.lease_ms, how_it_ended)
        if self._options.log_tasks != "none":
            await _log_lost(self.store, child, settled)
        return len(settled)

    async def _check_again(self, child: ChildProcess, how_it_ended: str) -> None:
        for pause_s in ORPHAN_CHECKS_S:
            await asyncio.sleep(pause_s)
            try:
                if settled := await self._settle(child, how_it_ended):
                    _log.warning("child %s: %d more of its tasks were settled", child.name, settled)
            except HoldfastError as error:
                _log.warning("child %s: the tasks of its last reserve wait for their lease: %s", child.name, error)

    async def run_maintenance(self, owner: str) -> None:
        """Runs maintenance, again after an error that ended it, and whenever the app declares other schedules."""
        backoff = Backoff(base_ms=1_000, cap_ms=30_000)
        while True:
            self._declared_anew.clear()
            running = asyncio.ensure_future(_maintain(self.store, owner, self._options.app, self.hello.schedules))
            declared_anew = asyncio.create_task(self._declared_anew.wait())
            try:
                await asyncio.wait((running, declared_anew), return_when=asyncio.FIRST_COMPLETED)
            finally:
                declared_anew.cancel()
                running.cancel()
                (ended,) = await asyncio.gather(running, return_exceptions=True)
            if not self._declared_anew.is_set():
                _report(ended)
                await asyncio.sleep(backoff.next_s())

    async def publish_types(self) -> None:
        """Publishes what the app declares of its task types, and again before that expires; goes on until cancelled."""
        told = ""
        while True:
            self._types_anew.clear()
            pause_s = DECLARED_TTL_MS / 4_000
            try:
                await documents.publish_types(self.store, self.hello.declared)
            except HoldfastError as error:
                pause_s = PUBLISH_AGAIN_S
                if str(error) != told:
                    told = str(error)
                    _log.info("the task types are not published, so `holdfast enqueue` needs --app: %s", error)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._types_anew.wait()

    async def leave(self, within_s: float) -> None:
        """Settles orphaned claims once more and deregisters the worker."""
        try:
            async with asyncio.timeout(within_s):
                for checking, child in list(self._orphan_checks.items()):
                    checking.cancel()
                    await self._settle(child, "was killed")
                await self.store.announce(self._record(), 0)
                await self.store.close()
        except (HoldfastError, TimeoutError) as error:
            _log.warning("could not deregister this worker: %s", error)

    def _record(self) -> WorkerRecord:
        return self._pool.record(self.hello.types, self.queues)


async def _reached(call: Callable[[], Awaitable[object]]) -> None:
    """Retries the first call until the store answers: it may have been started together with this worker."""
    backoff, deadline = Backoff(base_ms=500, cap_ms=10_000), asyncio.get_running_loop().time() + STORE_WAIT_S
    while True:
        try:
            await call()
        except HoldfastError as error:
            pause_s = backoff.next_s()
            left_s = deadline - asyncio.get_running_loop().time()
            if not error.retryable or left_s < pause_s:
                raise
            left = format_ms(1000 * round(left_s))
            _log.warning("waiting for the store, for up to %s; trying again in %.1fs: %s", left, pause_s, error)
            await asyncio.sleep(pause_s)
        else:
            return


async def _maintain(store: Store, owner: str, app: str, schedules: tuple[Schedule, ...]) -> None:
    async with asyncio.TaskGroup() as group:  # a store too full for a new schedule must still be pruned
        group.create_task(keep_declared(store, schedules, app if ":" in app else f"{app}:app"))
        group.create_task(Maintenance(store, owner, random_unit=random.random).run())


def _report(ended: BaseException | None) -> None:
    """Logs why maintenance ended; the tasks go on without it."""
    if isinstance(ended, HoldfastError):
        _log.warning("maintenance: %s", ended)
    else:
        _log.error("maintenance ended", exc_info=ended)


#: A task that a child held, and the change that settles it.
Settled = tuple[HeldTask, Change]


# -- orphaned claims: settling what a child held when it exited ----------------------------------------------


async def settle_orphans(
    store: Store, child: ChildProcess, queues: Sequence[str], lease_ms: int, how_it_ended: str
) -> list[Settled]:
    """Releases what a dismissed child held, or counts it as `worker_lost`; gives what was settled.

    The tasks for which it was killed are settled by the kill reason. The same call again, later, finds the tasks of a
    reserve that was on its way when the child exited. One partition that is away does not keep the tasks of the others
    from being settled.
    """
    detail = f"child {child.number} {how_it_ended}"
    held = list(child.holds.values())

    async def settle_unreported() -> list[Settled]:
        return await _settle_all(store, child, await _unreported(store, child, queues, lease_ms), detail)

    both = await asyncio.gather(_settle_all(store, child, held, detail), settle_unreported())
    for task in held:
        child.holds.pop(task.key, None)
    return [*both[0], *both[1]]


async def _settle_all(store: Store, child: ChildProcess, held: Sequence[HeldTask], detail: str) -> list[Settled]:
    """Settles these, those of each partition by themselves; gives what was settled."""
    groups: dict[int, list[Settled]] = {}
    for task in held:
        groups.setdefault(partition_of(task.task_id), []).append((task, _change(child, task, detail)))
    return list(chain(*await asyncio.gather(*(_apply(store, group) for group in groups.values()))))


async def _apply(store: Store, group: Sequence[Settled]) -> list[Settled]:
    settled: list[Settled] = []
    for first in range(0, len(group), MAX_BATCH):
        batch = group[first : first + MAX_BATCH]
        changes = [change for _, change in batch]
        verdicts = await persistently(partial(store.apply, changes), "settling for a child")
        settled += [each for each, verdict in zip(batch, verdicts, strict=True) if verdict.applied]
    return settled


async def _log_lost(store: Store, child: ChildProcess, settled: Sequence[Settled]) -> None:
    """Logs what became of the tasks that a child took with it; those that were just released are only counted."""
    lost = [(held, change) for held, change in settled if change.event is not lifecycle.Event.RELEASE]
    named = lost[:MAX_LOST_LOGGED]
    try:
        tasks = await store.get([held.task_id for held, _ in named]) if named else []
    except HoldfastError as error:  # they are settled; only their types are not known
        _log.warning("child %s lost the tasks %s: %s", child.name, ", ".join(held.task_id for held, _ in named), error)
        return
    for (held, change), task in zip(named, tasks, strict=True):
        if task is not None:
            log_settled(replace(task, attempt=held.attempt), change, child.policy(held))
    if len(lost) > len(named):
        _log.warning("child %s: %d more of its tasks were lost", child.name, len(lost) - len(named))


async def _unreported(store: Store, child: ChildProcess, queues: Sequence[str], lease_ms: int) -> list[HeldTask]:
    """Tasks of a reserve that was committed when the child exited, before it could report them.

    The claim_id was reported beforehand. The same reserve again gives the same tasks; for no types at all it
    cannot claim any others.
    """
    if not child.asking:
        return []
    request = Reserve(
        claim_id=child.asking,
        worker_id=child.worker_id,
        shares=[QueueShare(queue, MAX_BATCH) for queue in queues],
        max_tasks=MAX_BATCH,
        lease_ms=lease_ms,
        types=frozenset(),
    )
    reserved = await persistently(lambda: store.reserve(request), "looking for tasks of a child")
    return [HeldTask.of(0, task) for task in reserved.tasks]


def _change(child: ChildProcess, held: HeldTask, detail: str) -> Change:
    reason = child.kill_reasons.get(held.key)
    if reason is KillReason.IGNORED_CANCEL:
        return lifecycle.stop(held.task_id, held.token)
    if reason is KillReason.HARD_LIMIT:
        return _timed_out(child, held, describe_kill(reason, held))
    if child.dismissed:
        return lifecycle.release(held.task_id, held.token)
    return lifecycle.lose(
        held.task_id, held.token, "worker_lost", attempt=held.attempt, policy=child.policy(held), detail=detail
    )


def _timed_out(child: ChildProcess, held: HeldTask, what: str) -> Change:
    return lifecycle.time_out(
        held.task_id,
        held.token,
        Failure(error_name(TimedOut), f"{what}; its process was killed"),
        attempt=held.attempt,
        policy=child.policy(held),
        random_unit=random.random(),  # noqa: S311  (jitter)
    )
