from __future__ import annotations

import functools
import re
from pathlib import Path

import apsw
import pytest

from holdfast.admin.doctor import examine
from holdfast.core.priority import STRICT_STEP_MS
from holdfast.core.retry import RunPolicy
from holdfast.core.schedule.record import Schedule, ScheduledCall, Timing
from holdfast.stores import documents
from holdfast.stores.contract import Finding, QueueCounts, Store
from tests.cli.conftest import CommandLine, ShiftedClock, is_one_line
from tests.sharded.harness import url_of
from tests.support import eventually

#: In the next century.
LATER_MS = 4_102_444_800_000


def test_queues_ls_counts_states(cli: CommandLine) -> None:
    cli.enqueue(2)
    cli.enqueue(delay_ms=3_600_000)
    cli.dead_letters(1, queue="images")
    cli.announce(queues=("default", "idle"))
    rows = {row["queue"]: row for row in cli.rows("queues", "ls")}
    assert (rows["default"]["ready"], rows["default"]["scheduled"], rows["default"]["workers"]) == ("2", "1", "1")
    assert (rows["images"]["dead_lettered"], rows["images"]["workers"]) == ("1", "0")
    assert rows["idle"]["workers"] == "1"
    assert {row["queue"] for row in cli.json("queues", "ls")} == {"default", "idle", "images"}


def test_pause_stops_a_queue_and_resume_lets_it_go_on(cli: CommandLine) -> None:
    cli.enqueue()
    cli.ok("queues", "pause", "default")
    assert cli.rows("queues", "ls")[0]["status"] == "paused"
    assert cli.claim() == []
    assert cli.json("queues", "resume", "default") == [{"queue": "default", "paused": False}]
    assert len(cli.claim()) == 1


def test_the_order_of_a_queue_is_set_and_shown(any_cli: CommandLine) -> None:
    plain, urgent = any_cli.enqueue(), any_cli.enqueue(priority=1)
    assert any_cli.ok("queues", "order", "default", "aged", "--step", "1ms") == "queue default is aged, 1ms a level\n"
    assert any_cli.rows("queues", "ls")[0]["order"] == "aged, 1ms a level"
    answer = any_cli.json("queues", "order", "default", "strict")
    assert answer == {"queue": "default", "order": "strict", "step_ms": STRICT_STEP_MS}
    assert [task.task_id for task in any_cli.claim(2)] == [*urgent, *plain]
    any_cli.ok("queues", "order", "idle", "strict", "--create")
    any_cli.announce(queues=("idle",))
    rows = {row["queue"]: row for row in any_cli.json("queues", "ls")}
    assert {name: row["order"] for name, row in rows.items()} == {"default": "strict", "idle": "strict"}
    any_cli.ok("queues", "order", "default", "aged")
    assert any_cli.rows("queues", "ls")[0]["order"] == "aged"


def test_the_order_of_a_spread_queue_reaches_every_partition(tmp_path: Path) -> None:
    spread = CommandLine(tmp_path / "unused.db", url_of(tmp_path))
    spread.ok("queues", "spread", "default", "3")
    spread.ok("queues", "order", "default", "strict")
    steps = [counts.step_ms for counts in spread.store(_counts_of_all)]
    assert steps == [STRICT_STEP_MS] * 3
    assert spread.rows("queues", "ls")[0]["order"] == "strict"


async def _counts_of_all(store: Store) -> list[QueueCounts]:
    return [counts for partition in await store.partitions() for counts in await partition.counts()]


@pytest.mark.parametrize(
    "wrong", [["fifo"], ["aged", "--step", "0"], ["aged", "--step", "soon"], ["strict", "--step", "5m"], []]
)
def test_an_order_that_is_none_is_a_wrong_call(cli: CommandLine, wrong: list[str]) -> None:
    is_one_line(cli.run("queues", "order", "default", *wrong), 2)


def test_workers_ls_tells_the_living_from_the_gone(cli: CommandLine) -> None:
    cli.announce(worker_id="a-gone", ttl_ms=1)
    cli.announce(worker_id="b-alive")
    eventually(lambda: [row["status"] for row in cli.rows("workers", "ls")] == ["running", "gone"])
    assert [worker["worker_id"] for worker in cli.json("workers", "ls")] == ["b-alive", "a-gone"]


def test_migrate_names_its_steps_once(cli: CommandLine) -> None:
    missing = cli.json("migrate", "--dry-run")["steps"]
    assert missing == cli.json("migrate", "--dry-run")["steps"]
    assert cli.json("migrate")["steps"] == missing
    assert cli.ok("migrate", "--dry-run") == "up to date\n"
    assert cli.ok("migrate") == "up to date\n"
    assert "up to date" in cli.ok("migrate", "--status")


def test_doctor_is_content_with_a_healthy_store(cli: CommandLine) -> None:
    cli.enqueue()
    cli.announce()
    found = cli.json("doctor")
    assert found["healthy"] is True
    assert {"versions", "sqlite", "workers", "queues", "types", "claims", "dead letters"} <= {
        finding["check"] for finding in found["findings"]
    }
    assert not [finding for finding in found["findings"] if finding["level"] in ("warning", "problem")]


def test_doctor_ends_with_a_summary_that_counts_the_notes_in_a_file_too(cli: CommandLine) -> None:
    cli.announce()
    cli.dead_letters(2)
    report = cli.run("doctor")  # one of the notes is about the worker of another version
    assert report.stdout.splitlines()[-1] == f"\tsummary\tno warnings, no problems, 2 notes in {cli.url}"
    assert re.search(r"write-ahead log\t[\d.]+ MiB, small enough", report.stdout)
    assert report.stderr == ""


def test_doctor_finds_too_many_dead_letters(cli: CommandLine) -> None:
    cli.dead_letters(3)
    assert cli.run("doctor", "--max-dead-letters", "3").exit_code == 0
    result = cli.run("doctor", "--max-dead-letters", "2")
    assert result.exit_code == 1
    assert "3 dead letters, more than 2" in result.stdout


def test_doctor_finds_types_that_nobody_knows(cli: CommandLine) -> None:
    cli.enqueue(2, type="forgotten")
    cli.announce()
    assert "2 waiting tasks of type forgotten, which no running worker of queue default knows" in cli.ok("doctor")


def test_doctor_finds_queues_that_nobody_serves(cli: CommandLine) -> None:
    cli.enqueue(queue="lonely")
    cli.announce()
    assert "queue lonely" in cli.ok("doctor")


def test_doctor_tells_a_type_that_only_workers_of_other_queues_know(any_cli: CommandLine) -> None:
    any_cli.announce(worker_id="one", queues=("default",), types=("add",))
    any_cli.announce(worker_id="two", queues=("images",), types=("resize",))
    any_cli.enqueue(type="resize")
    any_cli.enqueue(type="resize", delay_ms=3_600_000)
    found = any_cli.ok("doctor")
    assert "2 waiting tasks of type resize, which no running worker of queue default knows" in found


def test_doctor_notes_a_queue_whose_slots_are_all_busy(any_cli: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mistake 37: a task waits for another one in the last slot."""
    monkeypatch.setattr("holdfast.admin.doctor._WAIT_LIMIT_MS", -1)
    any_cli.announce(concurrency=1)
    any_cli.enqueue(2)
    assert "busy" not in str(_examined(any_cli))
    any_cli.claim()
    (note,) = [each for each in _examined(any_cli) if "busy" in each.text]
    assert (note.level, note.check) == ("note", "queues")
    assert re.match(
        r"1 task in queue default for up to .*, and the only slot is busy: if running tasks wait", note.text
    )


def test_doctor_finds_tasks_that_nobody_lets_expire(any_cli: CommandLine) -> None:
    any_cli.enqueue(2, policy=RunPolicy(expires_ms=1))
    any_cli.enqueue(policy=RunPolicy(expires_ms=600_000))

    def found(later_ms: int) -> list[str]:
        return [each.text for each in _examined(any_cli, later_ms) if each.check == "deadlines"]

    eventually(lambda: len(any_cli.store(lambda store: store.expired()).unstarted) == 2)
    assert found(0) == []
    (text,) = found(60_000)
    assert text.startswith("2 tasks should have been started up to 1m")


def test_doctor_looks_at_schedules(any_cli: CommandLine) -> None:
    any_cli.announce()
    timing, known, unknown = Timing(every_ms=60_000), ScheduledCall(type="add"), ScheduledCall(type="gone")
    for new in (
        Schedule(name="fine", timing=timing, call=known, next_at_ms=LATER_MS),
        Schedule(name="forgotten", timing=timing, call=unknown, next_at_ms=LATER_MS),
        Schedule(name="late", timing=timing, call=known, next_at_ms=60_000),
        Schedule(name="paused", timing=timing, call=unknown, paused=True),
    ):
        assert any_cli.store(functools.partial(_put, new.name, new, 0))
    found = [each for each in _examined(any_cli) if each.check == "schedules"]
    assert {(each.level, each.text.partition(",")[0].partition(" due ")[0]) for each in found} == {
        ("warning", "schedule forgotten makes tasks of type gone"),
        ("problem", "schedule late was"),
        ("note", "schedule paused is paused"),
    }
    assert any_cli.run("doctor").exit_code == 1
    for name in ("forgotten", "late", "paused"):
        assert any_cli.store(functools.partial(_put, name, None, 1))
    assert [each.text for each in _examined(any_cli) if each.check == "schedules"] == ["1 schedule on time"]


async def _put(name: str, new: Schedule | None, expected: int, store: Store) -> bool:
    return await documents.put_schedule(store, name, new, expected)


def test_doctor_finds_claims_that_nobody_takes_back(cli: CommandLine) -> None:
    cli.enqueue()
    cli.claim()
    _age_leases(cli, by_ms=3_600_000)
    result = cli.run("doctor")
    assert result.exit_code == 1
    assert "1 claim expired up to" in result.stdout


def test_doctor_finds_workers_that_went_silent(cli: CommandLine) -> None:
    cli.announce(worker_id="silent", ttl_ms=1)
    eventually(lambda: "worker silent has not been heard of" in cli.ok("doctor"))


def _examined(cli: CommandLine, later_ms: int = 0) -> list[Finding]:
    return cli.store(lambda store: examine(store, clock=ShiftedClock(later_ms)))


def _age_leases(cli: CommandLine, by_ms: int) -> None:
    connection = apsw.Connection(str(cli.path))
    connection.execute("UPDATE tasks SET lease_expires_at_ms = lease_expires_at_ms - ?", (by_ms,))
    connection.close()
