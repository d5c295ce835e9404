"""Stresses: faults that bring tasks of their own, and wait until those have ended as they should."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.servers.postgres import PostgresServer
from tests.servers.proxy import FaultProxy, LineFaults
from tests.support import ROOT, environment, eventually, processor_seconds, run_holdfast

from chaos.clocks import MachineClock
from chaos.forking import NUMBERS, lines_of, request_id_of
from chaos.journal import Journal, Order, Pace, moment
from chaos.poison import POISONS, Poison
from chaos.tasks import LARGE_BYTES, QUEUES, QUIET_QUEUE, TOGETHER_SECONDS
from holdfast.core.task import FINAL_STATES, State

if TYPE_CHECKING:
    from chaos.faults import Stress
    from chaos.field import Field

_SECONDS: Final = 90.0
_PAUSE_SECONDS: Final = 0.2
# -- a slow line
SLOW_BYTES_PER_SECOND: Final = 10_000_000
_LARGE_TASKS: Final = 200
#: What a deployment with a slow line has: the default lease, and slots for all large tasks at once.
SLOW: Final[Mapping[str, Any]] = {"lease": "30s", "concurrency": 200, "spares_claims": True}
_LARGE_BATCH: Final = 20
#: The line needs five; the machine may be busy.
_SLOW_SECONDS: Final = 180.0
# -- clocks
_STEP_SECONDS: Final = 3_600
_LATER_TASKS: Final = 20
# -- forks: numbers that no order of the load has
_FIRST_FORK_NUMBER: Final = 100_000_000
_FORKING_TASKS: Final = 4
_ORDERS_OF_A_FORK: Final = 10
# -- poison
_NEIGHBOURS: Final = 60
_POISON_TIMES: Final = 2
_SLOT_ROUNDS: Final = 8
# -- a snapshot
SNAPSHOT_SECONDS: Final = 60.0
_SNAPSHOT_BATCH: Final = 1_000
_ANALYZE_EVERY_SECONDS: Final = 2.0


def slow_line(proxy: FaultProxy) -> Stress:
    """Many large tasks for workers whose line is slow: all run within their first lease."""

    def narrow(field: Field) -> str:
        more = {"ballast": "x" * LARGE_BYTES}
        orders = [field.journal.new_order(QUIET_QUEUE, "carry", more=more) for _ in range(_LARGE_TASKS)]
        proxy.strike(LineFaults(bytes_per_second=SLOW_BYTES_PER_SECOND))
        begun = moment()
        field.send(orders, _LARGE_BATCH)
        _wait_for_runs(field, orders, "large tasks on a slow line", _SLOW_SECONDS)
        proxy.strike()
        took = moment() - begun
        field.journal.figures.append(("slow line", f"{len(orders)} tasks of {LARGE_BYTES:,} bytes in {took:.1f} s"))
        return f"{SLOW_BYTES_PER_SECOND:,} bytes a second between workers and store for {took:.1f} s"

    return narrow


def step_clocks(clocks: Sequence[MachineClock]) -> Stress:
    """An hour ahead, and back when work has been done there; then the workers that saw it die, one by one."""

    def step(field: Field) -> str:
        field.cancel_later()  # what waits for half an hour must not see a whole one pass
        _step_all(field, clocks, _STEP_SECONDS)
        field.wait_for_progress()
        _step_all(field, clocks, 0)
        later = [
            field.journal.new_order(QUIET_QUEUE, "later", more={"kind": "later"}, ends=frozenset({State.CANCELLED}))
            for _ in range(_LATER_TASKS)
        ]
        field.send(later)
        killed = [field.workers.kill_one(field.random) for _ in field.workers.running]
        return f"an hour ahead and back, then {', '.join(killed)}"

    return step


@dataclass(frozen=True)
class Clocks:
    """The clock of a server, and that of all hosts with processes of Holdfast."""

    server: MachineClock
    host: MachineClock

    @property
    def all(self) -> Sequence[MachineClock]:
        """Both."""
        return [self.server, self.host]

    @property
    def stresses(self) -> Mapping[str, Stress]:
        """The steps that there can be."""
        return {
            "step_clock": step_clocks(self.all),
            "step_server_clock": step_clocks([self.server]),
            "step_worker_clock": step_clocks([self.host]),
        }

    def heal(self) -> None:
        """Both show the real time."""
        for clock in self.all:
            clock.step(0)


@contextmanager
def stepped(directory: Path) -> Iterator[Clocks]:
    """Clocks with their files in this directory; this process follows that of the hosts."""
    places = [directory / "server", directory / "host"]
    for place in places:
        place.mkdir()
    directory.chmod(0o755)
    clocks = Clocks(*map(MachineClock, places))
    with clocks.host.followed_here():
        yield clocks


def catch_up(clocks: Sequence[MachineClock]) -> Callable[[], None]:
    """Lets pass the time for which tasks may wait that were put off while the clock was ahead."""

    def pass_time() -> None:
        for clock in clocks:
            clock.step(_STEP_SECONDS + 600)

    return pass_time


def _step_all(field: Field, clocks: Sequence[MachineClock], seconds: int) -> None:
    field.journal.steps.append(moment())
    for clock in clocks:
        clock.step(seconds)
    field.journal.steps.append(moment())
    field.journal.note("nemesis", f"the clock is {seconds} s ahead")


def fork_producers(field: Field) -> str:
    """Producers, and tasks, that fork after they have used their app; parents and children go on to enqueue."""
    first = _FIRST_FORK_NUMBER + NUMBERS * 2 * len(field.journal.faults)
    path = field.directory / f"forks-{first}.txt"
    if field.deployment.forks_alone:
        with field.alone():
            _run_forking(field, path, first)
    else:
        _run_forking(field, path, first)
    tasks = _forking_tasks(field, path, first + NUMBERS) if field.deployment.worker_url is None else []
    field.send(tasks)
    _wait_for_settled(field, tasks)
    orders = _forked_orders(field.journal, path)
    return f"{len(orders)} orders of producers that forked"


def _run_forking(field: Field, path: Path, first: int) -> None:
    words = [sys.executable, "-m", "chaos.forking", field.deployment.url, str(path), str(first)]
    env = environment(more=field.deployment.environment)
    subprocess.run(words, env=env, cwd=ROOT, timeout=600, check=True)  # noqa: S603
    deadline = time.monotonic() + _SECONDS
    while not any(line.word == "end" for line in lines_of(path)):
        if time.monotonic() > deadline:
            field.journal.fork_failures.append(f"a forked producer did not end within {_SECONDS:g} s")
            return
        # Processes that open the store and leave it: the last one to leave a SQLite file tidies up.
        looked = run_holdfast("queues", "ls", url=field.deployment.url)
        assert looked.returncode == 0, looked.stderr  # noqa: S101


def _forking_tasks(field: Field, path: Path, first: int) -> list[Order]:
    return [
        field.journal.new_order(
            QUIET_QUEUE,
            "forks",
            more={"path": str(path), "first": first + each * 10 * _ORDERS_OF_A_FORK, "count": _ORDERS_OF_A_FORK},
        )
        for each in range(_FORKING_TASKS)
    ]


def _forked_orders(journal: Journal, path: Path) -> list[Order]:
    """Takes what forking producers have written into the journal; each of their calls should have succeeded."""
    orders: dict[int, Order] = {}
    for line in lines_of(path):
        if line.word == "sent":
            order = Order(request_id_of(line.number), line.number, QUEUES[line.number % len(QUEUES)], "plain")
            # A task that runs again sends the same orders again.
            orders[line.number] = journal.orders.setdefault(order.request_id, order)
        elif line.word == "done":
            journal.acknowledge(orders[line.number], line.text)
        elif line.word == "failed":
            journal.fork_failures.append(line.text)
    for order in orders.values():
        if order.task_id is None:
            journal.fork_failures.append(f"{order.request_id} was sent and never answered")
    return list(orders.values())


def poison(field: Field) -> str:
    """Tasks that once broke workers, beside neighbours that have no attempt to spare."""
    neighbours = [field.journal.new_order(QUIET_QUEUE, "neighbour", more={}) for _ in range(_NEIGHBOURS)]
    return _poison(field, [each for each in POISONS if not each.kills_its_process], neighbours)


def poison_exits(field: Field) -> str:
    """Tasks that end the process in which they run; the load goes on beside them."""
    return _poison(field, [each for each in POISONS if each.kills_its_process], [])


def _poison(field: Field, poisons: Sequence[Poison], neighbours: list[Order]) -> str:
    orders = [
        field.journal.new_order(QUIET_QUEUE, each.name, more={}, ends=each.ends)
        for each in poisons
        for _ in range(_POISON_TIMES)
    ]
    mixed = orders + neighbours
    field.random.shuffle(mixed)
    field.send(mixed)
    _wait_for_settled(field, mixed)
    _count_slots(field)
    return f"{len(orders)} poison tasks beside {len(neighbours)} neighbours"


def _count_slots(field: Field) -> None:
    """No slot is lost: as many tasks as there are slots can still run at the same time.

    Some rounds: after a crash a child begins with one slot, and has twice as many when those tasks have ended.
    """
    count = field.deployment.concurrency * len(field.workers.running)
    most = 0
    for each in range(_SLOT_ROUNDS):
        path = field.directory / f"together-{len(field.journal.faults)}-{each}"
        path.touch()
        more = {"path": str(path), "count": count}
        field.send([field.journal.new_order(QUIET_QUEUE, "together", more=more) for _ in range(count)])
        deadline = time.monotonic() + TOGETHER_SECONDS
        while path.stat().st_size < count and time.monotonic() < deadline:
            threading.Event().wait(_PAUSE_SECONDS)
        most = max(most, path.stat().st_size)
        if most >= count:
            break
        path.write_bytes(b"." * count)  # those that wait may go
    field.journal.slots.append((most, count))


def hold_snapshot(server: PostgresServer, database: str, seconds: float = SNAPSHOT_SECONDS) -> Stress:
    """A transaction holds a snapshot while the load runs and tables are analyzed: work goes on at its pace."""

    def hold(field: Field) -> str:
        begun, batches = moment(), list[_Batch]()
        with server.connect(database) as report, _analyzing(server, database) as analyzes:
            report.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
            report.execute("SELECT count(*) FROM holdfast.claims")
            while moment() < begun + seconds:
                start, before = moment(), _used(server, database, analyzes)
                orders = [field.journal.new_order(QUIET_QUEUE, "plain") for _ in range(_SNAPSHOT_BATCH)]
                field.send(orders)
                if not _wait_for_runs(field, orders, "tasks beside a snapshot"):
                    break
                after = _used(server, database, analyzes)
                used_s = sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())
                batches.append(_Batch(start - begun, moment() - start, used_s))
            report.execute("ROLLBACK")
        _note_pace(field.journal, batches, seconds)
        return f"a snapshot was held for {moment() - begun:.0f} s"

    return hold


def _used(server: PostgresServer, database: str, but: int) -> dict[int, float]:
    """What the backends of producers and workers have used of the processors so far, by pid."""
    statement = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = %s AND pid <> %s"
    return {pid: processor_seconds(pid) for (pid,) in server.query(statement, database, but)}


class _Batch(NamedTuple):
    """When it began, counted from the first one, how long it took, and what backends used of the processors."""

    began_s: float
    took_s: float
    used_s: float


def _note_pace(journal: Journal, batches: Sequence[_Batch], seconds: float) -> None:
    first = [batch for batch in batches if batch.began_s < seconds / 4]
    last = [batch for batch in batches if batch.began_s >= seconds * 3 / 4]
    if not first or not last:
        journal.violated("R20 pace", f"beside a snapshot, {len(batches)} batches came through in {seconds:g} s")
        return

    def rates(some: Sequence[_Batch]) -> tuple[float, float]:
        tasks = len(some) * _SNAPSHOT_BATCH
        return tasks / sum(batch.took_s for batch in some), tasks / max(0.01, sum(batch.used_s for batch in some))

    (pace, of_processors), (last_pace, last_of_processors) = rates(first), rates(last)
    journal.paces.append(Pace(pace, last_pace, of_processors, last_of_processors))
    journal.figures.append(("snapshot", str(journal.paces[-1])))


@contextmanager
def _analyzing(server: PostgresServer, database: str) -> Iterator[int]:
    """Analyzes all tables again and again; gives the pid of the backend that does."""
    over = threading.Event()
    tables = [
        name
        for (name,) in server.query("SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'", database=database)
    ]

    def analyze() -> None:
        while not over.wait(_ANALYZE_EVERY_SECONDS):
            for name in tables:
                connection.execute(f"ANALYZE holdfast.{name}".encode())

    with server.connect(database) as connection:
        thread = threading.Thread(target=analyze, name="analyze")
        thread.start()
        try:
            yield connection.info.backend_pid
        finally:
            over.set()
            thread.join()


def _wait_for_runs(field: Field, orders: Sequence[Order], what: str, seconds: float = _SECONDS) -> bool:
    numbers = [order.number for order in orders]
    try:
        eventually(lambda: field.ran.all_of(numbers), seconds, what)
    except AssertionError:
        missing = field.ran.missing(numbers)
        field.journal.violated("R16 recovery", f"{missing} of {len(orders)} {what} did not run in {seconds:g} s")
        return False
    return True


def _wait_for_settled(field: Field, orders: Sequence[Order]) -> None:
    """Returns when all have ended; those that have not are found by the rules."""
    waiting = [field.app.handle(order.task_id) for order in orders if order.task_id is not None]
    deadline = time.monotonic() + _SECONDS
    while waiting and time.monotonic() < deadline:
        waiting = [handle for handle in waiting if handle.status().state not in FINAL_STATES]
        if waiting:
            threading.Event().wait(_PAUSE_SECONDS)


#: Those that strike on every deployment.
COMMON: Final[Mapping[str, Callable[[Any], str]]] = {
    "fork_producers": fork_producers,
    "poison": poison,
    "poison_exits": poison_exits,
}
