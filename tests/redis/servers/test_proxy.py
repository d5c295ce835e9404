"""The line between client and server loses what it says it loses, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as NoConnection
from redis.exceptions import TimeoutError as NoAnswer
from redis.retry import Retry

import redis
from tests.servers.loopback import HOST
from tests.servers.proxy import FaultProxy, LineFaults
from tests.servers.redis_server import RedisServer
from tests.servers.resp import Frames, RespWire, command_of
from tests.servers.wire import AnyWire, Wire
from tests.support import eventually


@pytest.fixture
def line(redis_server: RedisServer) -> Iterator[FaultProxy]:
    with FaultProxy(redis_server.address) as proxy:
        yield proxy


def client_of(line: FaultProxy, **options: Any) -> redis.Redis:
    """A client that sends nothing twice."""
    plain: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "decode_responses": True, "socket_timeout": 5.0}
    return redis.Redis(host=HOST, port=line.port, **{**plain, **options})


def outcomes(call: Callable[[], object], times: int) -> list[bool]:
    """For each call, whether its reply arrived."""
    arrived = []
    for _ in range(times):
        try:
            call()
            arrived.append(True)
        except NoConnection:
            arrived.append(False)
    return arrived


@pytest.mark.parametrize("protocol", [2, 3])
def test_good_line_changes_nothing(line: FaultProxy, protocol: int) -> None:
    with client_of(line, protocol=protocol) as client:
        assert client.set("a", "x" * 1_000_000)
        assert client.get("a") == "x" * 1_000_000
        client.hset("h", mapping={"one": "1", "two": "2"})
        assert client.hgetall("h") == {"one": "1", "two": "2"}
        assert client.eval("return {1, {2, 'three', false}, {}}", 0) == [1, [2, "three", None], []]
        assert client.config_get("maxmemory") == {"maxmemory": "0"}
        assert client.get("nothing") is None
    assert line.struck.dropped == 0
    assert line.struck.replies == 7
    assert line.struck.connections == 1


def test_every_third_reply_is_lost_and_its_request_was_done(line: FaultProxy, redis_server: RedisServer) -> None:
    line.strike(LineFaults(drop_every=3))
    with client_of(line) as client:
        assert outcomes(lambda: client.incr("n"), 12) == [True, True, False] * 4
    assert redis_server.command("GET", "n") == "12"
    assert line.struck.dropped == 4
    assert line.struck.dropped_by_command == {"INCRBY": 4}
    assert line.struck.connections == 4  # a new one after each loss but the last


def test_only_named_commands_count(line: FaultProxy) -> None:
    line.strike(LineFaults(drop_every=2, commands=frozenset({"INCRBY"})))
    with client_of(line) as client:
        assert outcomes(lambda: client.set("a", "1"), 5) == [True] * 5
        assert outcomes(lambda: client.incr("n"), 4) == [True, False, True, False]


def test_replies_before_the_lost_one_arrive(line: FaultProxy, redis_server: RedisServer) -> None:
    line.strike(LineFaults(drop_every=2))
    with client_of(line) as client:
        connection = client.connection_pool.get_connection()
        connection.send_packed_command(connection.pack_commands([("INCR", "n"), ("INCR", "n"), ("INCR", "n")]))
        assert connection.read_response() == 1
        with pytest.raises(NoConnection):
            connection.read_response()
        client.connection_pool.release(connection)
    assert redis_server.command("GET", "n") == "3"


def test_torn_reply_is_no_reply(line: FaultProxy) -> None:
    with client_of(line) as client:
        client.set("a", "x" * 10_000)
        line.strike(LineFaults(drop_share=1.0, torn_share=1.0))
        assert outcomes(lambda: client.get("a"), 3) == [False] * 3
    assert line.struck.torn == 3


def test_same_seed_same_losses(redis_server: RedisServer) -> None:
    def losses(seed: int) -> list[bool]:
        faults = LineFaults(drop_share=0.3)
        with FaultProxy(redis_server.address, seed=seed, faults=faults) as line, client_of(line) as client:
            return outcomes(lambda: client.incr("n"), 40)

    first = losses(7)
    assert first == losses(7)
    assert first != losses(8)
    assert 0 < sum(first) < 40


def test_slow_line_is_slow_for_each_reply(line: FaultProxy) -> None:
    line.strike(LineFaults(longest_delay_ms=5))
    with client_of(line) as client:
        assert outcomes(lambda: client.incr("n"), 10) == [True] * 10
    assert line.struck.delayed == 10


def test_cut_breaks_what_is_open_and_new_ones_work(line: FaultProxy) -> None:
    with client_of(line) as one, client_of(line) as two:
        one.ping()
        two.ping()
        assert line.cut() == 2
        assert one.ping()
    assert line.struck.cut == 2
    assert line.struck.connections == 3


def test_cut_ends_a_call_that_waits(line: FaultProxy) -> None:
    with client_of(line, socket_timeout=30) as client, ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(client.blpop, ["nothing"], 20)
        eventually(lambda: line.struck.requests and "BLPOP" in line.pending())
        line.cut()
        with pytest.raises(NoConnection):
            waiting.result(10)


def test_refused_connections_leave_open_ones_alone(line: FaultProxy) -> None:
    with client_of(line) as old, client_of(line) as new:
        old.ping()
        line.refuse()
        with pytest.raises(NoConnection, match="refused"):
            new.ping()
        assert old.ping()
        line.accept()
        assert new.ping()


def test_dead_line_holds_everything_up(line: FaultProxy, redis_server: RedisServer) -> None:
    with client_of(line, socket_timeout=0.2) as client:
        client.set("a", "1")
        line.stall()
        with pytest.raises(NoAnswer):
            client.set("a", "2")
        assert redis_server.command("GET", "a") == "1"
        line.flow()
        assert eventually(client.ping)


@pytest.mark.parametrize("wire", [RespWire, AnyWire])
def test_narrow_line_takes_its_time_and_loses_nothing(redis_server: RedisServer, wire: type[Wire]) -> None:
    value = "x" * 300_000
    with FaultProxy(redis_server.address, wire=wire) as line, client_of(line) as client:
        client.ping()
        line.strike(LineFaults(bytes_per_second=1_000_000))
        begun = time.monotonic()
        assert client.set("a", value)
        assert time.monotonic() - begun >= 0.3
        begun = time.monotonic()
        assert client.get("a") == value
        assert time.monotonic() - begun >= 0.3


def test_narrow_line_is_shared_by_all_connections(line: FaultProxy) -> None:
    with client_of(line) as client, ThreadPoolExecutor(3) as threads:
        client.set("a", "x" * 100_000)
        line.strike(LineFaults(bytes_per_second=1_000_000))
        begun = time.monotonic()
        assert [len(value) for value in threads.map(client.get, ["a"] * 3)] == [100_000] * 3
        assert time.monotonic() - begun >= 0.3


def test_server_that_is_gone_breaks_the_line(line: FaultProxy, redis_server: RedisServer) -> None:
    with client_of(line) as client:
        client.ping()
        redis_server.kill()
        with pytest.raises(NoConnection):
            client.execute_command("INCR", "n")
        with pytest.raises(NoConnection):
            client.ping()
        redis_server.heal()
        assert client.ping()


def test_subscriptions_pass_through(line: FaultProxy, redis_server: RedisServer) -> None:
    with client_of(line) as client, client.pubsub() as subscription:
        subscription.subscribe("news")
        eventually(lambda: subscription.get_message(timeout=0.1))
        redis_server.command("PUBLISH", "news", "hello")
        message = eventually(lambda: subscription.get_message(timeout=0.1))
        assert message["data"] == "hello"


def test_url_leads_through_the_line(line: FaultProxy, redis_server: RedisServer) -> None:
    with redis.Redis.from_url(line.url_for(redis_server.url)) as client:
        client.incr("n")
    assert line.struck.replies == 1


# -- the protocol -------------------------------------------------------------------------------------------

REPLIES = [
    b"+OK\r\n",
    b"-ERR no\r\n",
    b":12\r\n",
    b"$-1\r\n",
    b"$0\r\n\r\n",
    b"$4\r\n\r\n\r\n\r\n",
    b"*-1\r\n",
    b"*0\r\n",
    b"*2\r\n*1\r\n:1\r\n$1\r\na\r\n",
    b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n_\r\n",
    b"~1\r\n#t\r\n",
    b"=7\r\ntxt:abc\r\n",
    b"|1\r\n+ttl\r\n:9\r\n$1\r\na\r\n",
    b">2\r\n+message\r\n,1.5\r\n",
    b"_\r\n",
]


@pytest.mark.parametrize("size", [1, 2, 7, 1_000])
def test_frames_are_found_whatever_the_pieces(size: int) -> None:
    stream, frames = b"".join(REPLIES), Frames()
    pieces = [stream[start : start + size] for start in range(0, len(stream), size)]
    assert [frame for piece in pieces for frame in frames.feed(piece)] == REPLIES


def test_command_is_the_first_word() -> None:
    assert command_of(b"*2\r\n$3\r\nget\r\n$1\r\na\r\n") == "GET"
    assert command_of(b"ping hello\r\n") == "PING"
    assert command_of(b"\r\n") == ""
