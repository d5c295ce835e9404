"""One of three Redis servers is away: the HTTP API, and the command line through it, go on with the other two."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast import TaskHandle
from holdfast.server.server import ServerSettings
from holdfast.stores.open import open_store
from tests.remote.holdfast_server import holdfast_server
from tests.server.setting import Client, running_server
from tests.server.test_events import Stream
from tests.servers.redis_server import RedisServer
from tests.sharded.test_one_away import QUEUES, Servers, _enqueue_each, servers
from tests.support import eventually, run_holdfast
from tests.worker.apps.jobs import make_app

__all__ = ["servers"]


class Setting(NamedTuple):
    """A store of three servers behind an HTTP server that asks for no token, with a task in each partition."""

    servers: list[RedisServer]
    handles: list[TaskHandle[object]]
    client: Client


@pytest.fixture
def servers_with_long_deadlines(servers: Servers) -> Servers:
    """Nothing here waits for the deadline of a partition."""
    servers.url = servers.url.replace("500ms", "60s")
    return servers


@pytest.fixture
def setting(servers_with_long_deadlines: Servers) -> Iterator[Setting]:
    settings = ServerSettings(maintenance=False)
    with (
        make_app(servers_with_long_deadlines.url) as jobs,
        running_server(lambda: open_store(servers_with_long_deadlines.url), settings=settings) as server,
    ):
        with closing(Client(server.port)) as client:
            made = Setting(servers_with_long_deadlines.servers, _enqueue_each(jobs, "add", 1, 2), client)
            assert "left_out" not in client.get("/v1/queues")
            yield made
        for each in servers_with_long_deadlines.servers:
            each.heal()


@pytest.mark.parametrize("away", [0, 1])
def test_lists_name_the_partition_that_is_away(setting: Setting, away: int) -> None:
    client, (gone, *others) = setting.client, _first(QUEUES, away)
    setting.servers[away].freeze()
    for path in ("/v1/queues", "/v1/tasks", "/v1/dead-letters", "/v1/dead-letters/by-error", "/v1/schedules"):
        assert client.get(path)["left_out"] == [away], path
    assert client.get("/v1/workers").get("left_out") == (None if away else [0])
    assert {queue["queue"] for queue in client.get("/v1/queues")["queues"]} == set(others)
    assert {task["queue"] for task in client.get("/v1/tasks")["tasks"]} == set(others)
    replayed = client.post("/v1/dead-letters/replay", {"filter": {}})
    assert (replayed["matched"], replayed["left_out"]) == (0, [away])
    setting.servers[away].heal()
    eventually(lambda: "left_out" not in client.get("/v1/tasks"), 20)
    assert {task["queue"] for task in client.get("/v1/tasks")["tasks"]} == {gone, *others}


@pytest.mark.parametrize("away", [0, 1])
def test_queues_and_tasks_of_the_other_partitions_are_whole(setting: Setting, away: int) -> None:
    client, (gone, *others) = setting.client, _first(QUEUES, away)
    _, *healthy = _first(setting.handles, away)
    setting.servers[away].kill()
    for queue, handle in zip(others, healthy, strict=True):
        assert client.get(f"/v1/queues/{queue}")["states"] == {"ready": 1}
        scale = client.get(f"/v1/queues/{queue}/scale")
        assert (scale["backlog"], scale.get("left_out")) == (1, None if away else [0])
        assert client.post(f"/v1/queues/{queue}/pause")["left_out"] == [away]
        why = client.get(f"/v1/tasks/{handle.task_id}/why")
        assert why["cause"] == "queue_paused"
        assert why.get("left_out") == (None if away else [0])
        assert client.post(f"/v1/queues/{queue}/resume")["paused"] is False
        why = client.get(f"/v1/tasks/{handle.task_id}/why")
        assert ("is not known" in why["text"]) == (away == 0)
        assert why["cause"] == ("no_worker_for_queue" if away else "next")
    for path in (f"/v1/queues/{gone}", f"/v1/queues/{gone}/scale"):
        assert client.get(path, 503)["type"].endswith("store-unavailable")
    assert client.send("POST", f"/v1/queues/{gone}/pause", {}).status == 503


def test_an_event_stream_keeps_the_queues_of_a_partition_that_is_away(setting: Setting) -> None:
    with closing(Stream(setting.client.port)) as stream:
        assert len(stream.next("queues")["queues"]) == 3
        setting.servers[1].freeze()
        _next(stream, [1])
        with closing(Stream(setting.client.port)) as late:
            everything = late.next("queues")
            assert everything["left_out"] == [1]
            assert {row["queue"] for row in everything["queues"]} == set(QUEUES)
        setting.servers[1].heal()
        _next(stream, None)


def _next(stream: Stream, left_out: list[int] | None) -> None:
    """Reads on until events leave out these partitions; meanwhile the age of tasks changes, and no queue goes."""
    while (event := stream.next("queues")).get("left_out") != left_out:
        assert event["gone"] == []
    assert event["gone"] == []


@pytest.mark.parametrize("frozen", [False, True])
def test_commands_through_the_server_show_the_rest_and_name_what_is_away(
    servers_with_long_deadlines: Servers, tmp_path: Path, frozen: bool
) -> None:
    redis = servers_with_long_deadlines.servers[1]
    with (
        make_app(servers_with_long_deadlines.url) as jobs,
        holdfast_server(tmp_path, servers_with_long_deadlines.url) as server,
    ):
        _enqueue_each(jobs, "add", 1, 2)
        url = server.url("admin")
        (redis.freeze if frozen else redis.kill)()
        _commands_show_the_rest(url)
        redis.heal()
        eventually(lambda: _is_whole(url), 20)


def _is_whole(url: str) -> bool:
    done = run_holdfast("queues", "ls", url=url)
    return (done.returncode, done.stderr) == (0, "")


def _commands_show_the_rest(url: str) -> None:
    for words, shown in (
        (("queues", "ls", "--json"), ['"a"', '"b"']),
        (("tasks", "ls", "--json"), ['"a"', '"b"']),
        (("schedules", "ls"), []),
        (("dead", "ls"), []),
        (("queues", "pause", "a"), []),
        (("tasks", "cancel", "--all", "--yes"), ["2"]),
    ):
        done = run_holdfast(*words, url=url)
        assert done.returncode == 1, done
        (warning,) = [line for line in done.stderr.splitlines() if line.startswith("holdfast: ")]
        assert warning.startswith("holdfast: partition 1 is left out: the server at http://")
        assert all(text in done.stdout for text in shown), done


def test_all_partitions_away_is_an_error(setting: Setting) -> None:
    for server in setting.servers:
        server.kill()
    assert setting.client.get("/v1/queues", 503)["type"].endswith("store-unavailable")


def _first(items: Any, number: int) -> list[Any]:
    """The items, this one in front."""
    return [items[number], *(item for n, item in enumerate(items) if n != number)]
