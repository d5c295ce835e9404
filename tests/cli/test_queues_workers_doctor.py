from __future__ import annotations

import apsw

from tests.cli.conftest import CommandLine
from tests.support import eventually


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


def test_doctor_finds_too_many_dead_letters(cli: CommandLine) -> None:
    cli.dead_letters(3)
    assert cli.run("doctor", "--max-dead-letters", "3").exit_code == 0
    result = cli.run("doctor", "--max-dead-letters", "2")
    assert result.exit_code == 1
    assert "3 dead letters, more than 2" in result.stdout


def test_doctor_finds_types_that_nobody_knows(cli: CommandLine) -> None:
    cli.enqueue(2, type="forgotten")
    cli.announce()
    assert "2 ready tasks of type forgotten, which no running worker knows" in cli.ok("doctor")


def test_doctor_finds_queues_that_nobody_serves(cli: CommandLine) -> None:
    cli.enqueue(queue="lonely")
    cli.announce()
    assert "queue lonely" in cli.ok("doctor")


def test_doctor_finds_claims_that_nobody_takes_back(cli: CommandLine) -> None:
    cli.enqueue()
    cli.claim()
    _age_leases(cli, by_ms=3_600_000)
    result = cli.run("doctor")
    assert result.exit_code == 1
    assert "1 claim ran out up to" in result.stdout


def test_doctor_finds_workers_that_went_silent(cli: CommandLine) -> None:
    cli.announce(worker_id="silent", ttl_ms=1)
    eventually(lambda: "worker silent has not been heard of" in cli.ok("doctor"))


def _age_leases(cli: CommandLine, by_ms: int) -> None:
    connection = apsw.Connection(str(cli.path))
    connection.execute("UPDATE tasks SET lease_expires_at_ms = lease_expires_at_ms - ?", (by_ms,))
    connection.close()
