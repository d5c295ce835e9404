from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.stores.contract import MAINTENANCE, Leadership, Store
from tests.cli.conftest import CommandLine, is_one_line
from tests.sharded.harness import url_of


@pytest.fixture
def sharded(tmp_path: Path) -> CommandLine:
    cli = CommandLine(tmp_path / "unused.db")
    cli.url = url_of(tmp_path)
    cli.ok("migrate")
    return cli


def test_partitions_ls_shows_one_line_a_partition(sharded: CommandLine) -> None:
    async def lead(store: Store) -> Leadership:
        return await (await store.partitions())[1].lead(MAINTENANCE, "worker-7", 60_000)

    sharded.store(lead)
    rows = sharded.rows("partitions", "ls")
    assert [row["partition"] for row in rows] == ["0", "1", "2"]
    assert [row["owner"] for row in rows] == ["-", "worker-7", "-"]
    assert [row["epoch"] for row in rows] == ["0", "1", "0"]
    assert rows[2]["server"].endswith("part-2.db")
    assert sharded.json("partitions", "ls")[1] == {
        "partition": 1,
        "server": rows[1]["server"],
        "owner": "worker-7",
        "epoch": 1,
        "depth": 0,
        "error": None,
    }


def test_partitions_ls_counts_the_tasks_that_have_not_ended(sharded: CommandLine) -> None:
    sharded.ok("enqueue", "add", "--force", "--args", "{}", "--queue", "default")
    sharded.ok("enqueue", "add", "--force", "--args", "{}", "--queue", "default", "--delay", "1h")
    assert sorted(row["depth"] for row in sharded.rows("partitions", "ls")) == ["0", "0", "2"]


def test_partitions_ls_of_a_single_store(cli: CommandLine) -> None:
    cli.enqueue(2)
    (row,) = cli.rows("partitions", "ls")
    assert (row["partition"], row["owner"], row["depth"]) == ("0", "-", "2")


def test_a_queue_is_spread_and_its_tasks_follow(sharded: CommandLine) -> None:
    answer = sharded.json("queues", "spread", "default", "3")
    assert sorted(answer["partitions"]) == [0, 1, 2]
    for _ in range(4):
        sharded.ok("enqueue", "add", "--force", "--args", "{}")
    assert answer["map_version"] == 2
    assert sharded.json("queues", "spread", "default", "3")["map_version"] == 2
    assert "go to partition 1 (map version 3)" in sharded.ok("queues", "spread", "default", "1")
    assert sum(int(row["depth"]) for row in sharded.rows("partitions", "ls")) == 4


@pytest.mark.parametrize("width", ["0", "4"])
def test_a_width_that_cannot_be_is_refused(sharded: CommandLine, width: str) -> None:
    line = is_one_line(sharded.run("queues", "spread", "default", width), 2)
    assert "1 to 3 partitions" in line


def test_a_single_store_has_nothing_to_spread_over(cli: CommandLine) -> None:
    cli.enqueue()
    assert "has one partition" in is_one_line(cli.run("queues", "spread", "default", "2"), 2)


def test_one_partition_alone_is_no_store(sharded: CommandLine, tmp_path: Path) -> None:
    sharded.ok("enqueue", "add", "--force", "--args", "{}")
    alone = CommandLine(tmp_path / "part-1.db")
    line = is_one_line(alone.run("enqueue", "add", "--force", "--args", "{}"), 1)
    assert "opened with the URLs of all of them" in line


def test_the_list_of_urls_must_stay_as_it_was(sharded: CommandLine, tmp_path: Path) -> None:
    one, two, three = sharded.url.split(",")
    sharded.url = f"{two},{one},{three}"
    assert "is partition 1, the URL lists it as partition 0" in is_one_line(sharded.run("tasks", "ls"), 2)
    sharded.url = f"{one},{two}"
    assert "3 partitions, the URL lists 2" in is_one_line(sharded.run("tasks", "ls"), 2)
    sharded.url = f"{one},{one}"
    assert "names a partition twice" in is_one_line(sharded.run("tasks", "ls"), 2)
