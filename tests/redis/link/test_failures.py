"""Each way in which a server can be wrong is one clear line, without the password."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import pytest

from holdfast.errors import BadUrl, HoldfastError, StoreError, StoreFull, StoreUnavailable
from holdfast.stores.redis.link import Link
from tests.redis.link.helpers import BROKEN, KEY, READ, RECORD, linked, recording
from tests.servers.callers import in_thread, one_line, until
from tests.servers.certificates import Certificates, make_certificates
from tests.servers.flavours import FAST
from tests.servers.loopback import HOST
from tests.servers.redis_server import RedisServer
from tests.servers.replicas import Replicas
from tests.support import free_port

PASSWORD = "s3cr3t-p4ss"


def failure(url: str, **options: str | int) -> HoldfastError:
    """What the first call to this URL raises."""

    async def first_call() -> HoldfastError:
        async with linked(url, **{"deadline": "500ms", **options}) as link:
            with pytest.raises(HoldfastError) as caught:
                await link.call(RECORD, KEY, ["a", "1"])
            return caught.value

    return asyncio.run(first_call())


@pytest.fixture(scope="module")
def locked_server() -> Iterator[RedisServer]:
    with RedisServer(password=PASSWORD) as server:
        yield server


@pytest.fixture(scope="module")
def tls_server() -> Iterator[RedisServer]:
    with RedisServer(tls=True) as server:
        yield server


@pytest.mark.parametrize("protocol", [2, 3])
def test_wrong_password(locked_server: RedisServer, protocol: int) -> None:
    error = failure(f"redis://joe:{PASSWORD}x@{HOST}:{locked_server.port}", protocol=protocol)
    assert isinstance(error, BadUrl)
    assert "wrong user or password" in one_line(error, PASSWORD)


@pytest.mark.parametrize("protocol", [2, 3])
def test_no_password(locked_server: RedisServer, protocol: int) -> None:
    error = failure(f"redis://{HOST}:{locked_server.port}", protocol=protocol)
    assert isinstance(error, BadUrl)
    assert "the server wants a password" in one_line(error)


@pytest.mark.parametrize("protocol", [2, 3])
def test_right_password(locked_server: RedisServer, protocol: int) -> None:
    async def scenario() -> None:
        async with linked(locked_server.url, protocol=protocol) as link:
            assert await link.call(RECORD, KEY, [f"right {protocol}", "1"]) == b"created"
            assert PASSWORD not in link.url

    asyncio.run(scenario())


def test_tls_to_a_plain_port(redis_server: RedisServer) -> None:
    error = failure(redis_server.url.replace("redis://", "rediss://"), deadline="10s")
    assert isinstance(error, BadUrl)
    assert "no TLS on this port; write redis:// instead of rediss://" in one_line(error)


def test_plain_to_a_tls_port(tls_server: RedisServer) -> None:
    error = failure(tls_server.url.replace("rediss://", "redis://"), deadline="10s")
    assert isinstance(error, BadUrl)
    assert "the server wants TLS on this port; write rediss://" in one_line(error)


def test_certificate_of_nobody_we_know(tls_server: RedisServer) -> None:
    error = failure(tls_server.url, deadline="10s")
    assert isinstance(error, BadUrl)
    assert "certificate is not trusted" in one_line(error)
    assert "?ca=FILE" in str(error)


def test_tls_with_the_right_authority(tls_server: RedisServer) -> None:
    async def scenario() -> None:
        assert tls_server.certificates
        async with linked(tls_server.url, ca=str(tls_server.certificates.authority)) as link:
            assert await link.call(RECORD, KEY, ["a", "1"]) == b"created"

    asyncio.run(scenario())


def test_wrong_database(redis_server: RedisServer) -> None:
    error = failure(f"{redis_server.url}/99")
    assert isinstance(error, BadUrl)
    assert "has no database 99" in one_line(error)


def test_other_database_is_another_place(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        async with linked(f"{redis_server.url}/5") as five, linked(redis_server.url) as zero:
            await five.call(RECORD, KEY, ["a", "1"])
            assert await zero.call(READ, KEY, ["a"]) is None
            assert await five.call(READ, KEY, ["a"]) == b"1"

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["redis://{}", "redis+sentinel://{}/service", "redis+cluster://{}"])
def test_nobody_there(kind: str) -> None:
    error = failure(kind.format(f"{HOST}:{free_port()}"))
    assert isinstance(error, StoreUnavailable)
    assert error.retryable
    assert "connection refused at" in one_line(error)


def test_unknown_host() -> None:
    error = failure("redis://no-such-host.invalid")
    assert isinstance(error, StoreUnavailable)
    assert "is not known" in one_line(error)


def test_cluster_url_to_a_single_server_and_the_reverse(redis_server: RedisServer) -> None:
    assert "not part of a cluster" in one_line(failure(redis_server.url.replace("redis://", "redis+cluster://")))
    with RedisServer(cluster=True) as node:
        assert "write redis+cluster://" in one_line(failure(node.url))


def test_sentinel_url_to_a_server_and_the_reverse(redis_server: RedisServer) -> None:
    error = failure(redis_server.url.replace("redis://", "redis+sentinel://") + "/service")
    assert "is no Sentinel" in one_line(error)
    with RedisServer(profile={}, sentinel=True) as sentinel:
        assert "this is a Sentinel" in one_line(failure(sentinel.url))
        error = failure(sentinel.url.replace("redis://", "redis+sentinel://") + "/shop")
        assert "know no service 'shop'" in one_line(error)


def test_missing_permission() -> None:
    with RedisServer(profile={**FAST, "user joe": "on >hush ~* +@all -evalsha -eval"}) as server:
        error = failure(f"redis://joe:hush@{HOST}:{server.port}")
    assert type(error) is StoreError
    assert "ACL" in one_line(error, "hush")


def test_eviction_is_refused(any_server: RedisServer) -> None:
    any_server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    error = failure(any_server.url)
    assert type(error) is StoreError
    assert "set maxmemory-policy noeviction" in one_line(error)


def test_full_server_says_so_at_once(any_server: RedisServer) -> None:
    async def scenario() -> None:
        async with linked(any_server.url) as link:
            await link.call(RECORD, KEY, ["a", "1"])
            any_server.command("CONFIG", "SET", "maxmemory", 1)
            with pytest.raises(StoreFull) as caught:
                await link.call(RECORD, KEY, ["b", "1"])
            assert "memory is full" in one_line(caught.value)
            any_server.command("CONFIG", "SET", "maxmemory", 0)
            assert await link.call(RECORD, KEY, ["b", "1"]) == b"created"

    asyncio.run(scenario())


def test_script_with_a_bug_is_not_repeated(any_server: RedisServer) -> None:
    async def scenario() -> None:
        async with linked(any_server.url) as link:
            with pytest.raises(StoreError) as caught:
                await link.call(BROKEN, KEY, [])
            assert not caught.value.retryable
            assert "script broken failed" in one_line(caught.value)

    asyncio.run(scenario())


def test_replica_is_refused_even_for_reading() -> None:
    async def scenario(url: str) -> None:
        async with linked(url, deadline="300ms") as link:
            with pytest.raises(StoreUnavailable) as caught:
                await link.call(READ, KEY, ["a"])
            assert "is a replica" in one_line(caught.value)

    with Replicas(profile=FAST) as servers:
        asyncio.run(scenario(servers.replicas[0].url))


def test_too_few_replicas_by_the_servers_own_rule(redis_server: RedisServer) -> None:
    redis_server.command("CONFIG", "SET", "min-replicas-to-write", 1)
    error = failure(redis_server.url)
    assert isinstance(error, StoreUnavailable)
    assert "start the replicas" in one_line(error)


def test_busy_server_is_waited_for(redis_server: RedisServer) -> None:
    async def scenario() -> None:
        redis_server.command("CONFIG", "SET", "busy-reply-threshold", 1)
        async with linked(redis_server.url, deadline="30s") as link:
            await link.call(RECORD, KEY, ["a", "1"])
            busy = asyncio.create_task(in_thread(_loop_for_ever, redis_server))
            callers = recording(link, safe=False)
            await until(lambda: _is_busy(redis_server), "the server is busy")
            await in_thread(redis_server.command, "SCRIPT", "KILL")
            await busy
            await callers.more()
            await callers.stop()
            assert callers.gave_up == 0

    asyncio.run(scenario())


def test_too_many_clients() -> None:
    with RedisServer(maxclients=5) as server, ExitStack() as others:
        for _ in range(5):
            others.enter_context(server.client()).ping()
        error = failure(server.url)
    assert isinstance(error, StoreUnavailable)
    assert "raise maxclients" in one_line(error)


def test_server_that_loads_its_data_is_waited_for() -> None:
    async def scenario(server: RedisServer) -> None:
        async with linked(server.url, deadline="60s") as link:
            await link.call(RECORD, KEY, ["before", "1"])
            for number in range(100):
                await link.call(RECORD, f"{KEY}:{number}", ["a", "1"])
            server.command("SAVE")
            server.kill()
            server.configure(key_load_delay=10_000, loading_process_events_interval_bytes=1_024)
            server.launch()
            assert await link.call(READ, KEY, ["before"]) == b"1"

    with RedisServer() as server:
        asyncio.run(scenario(server))


def _loop_for_ever(server: RedisServer) -> None:
    with pytest.raises(Exception, match=r"(?i)script killed"):
        server.command("EVAL", "while true do end", 0)


def _is_busy(server: RedisServer) -> bool:
    try:
        return not server.command("PING")
    except Exception as error:  # noqa: BLE001
        return "BUSY" in str(error)


# -- after the first answer: what is refused then may pass ------------------------------------------------------


@contextmanager
def _another_password(server: RedisServer) -> Iterator[None]:
    with server.client() as admin:
        admin.config_set("requirepass", "another")
        admin.client_kill_filter(_type="normal", skipme=True)
        yield
        admin.config_set("requirepass", PASSWORD)


@contextmanager
def _no_scripts(server: RedisServer) -> Iterator[None]:
    with server.client() as admin:
        admin.execute_command("ACL", "SETUSER", "default", "-evalsha")
        yield
        admin.execute_command("ACL", "SETUSER", "default", "+evalsha")


@contextmanager
def _evicting(server: RedisServer) -> Iterator[None]:
    """A server that must not be used, at the next meeting."""
    server.restart(maxmemory_policy="allkeys-lru")
    yield
    server.command("CONFIG", "SET", "maxmemory-policy", "noeviction")


@pytest.mark.parametrize(
    ("refusing", "words"),
    [
        (_another_password, "wrong user or password"),
        (_no_scripts, "ACL SETUSER default +evalsha"),
        (_evicting, "set maxmemory-policy noeviction"),
    ],
)
def test_refusal_after_the_first_answer_is_an_outage(
    refusing: Callable[[RedisServer], AbstractContextManager[None]], words: str
) -> None:
    async def scenario(server: RedisServer) -> None:
        async with linked(server.url, deadline="2s") as link:
            await link.call(RECORD, KEY, ["a", "1"])
            with refusing(server):
                # A new event loop, as in another thread of this process, has met nobody yet.
                error = await in_thread(_refused, link)
                assert type(error) is StoreUnavailable
                assert words in one_line(error, PASSWORD)
                assert "(tried for " in str(error)
            assert await link.call(RECORD, KEY, ["b", "1"]) == b"created"

    with RedisServer(password=PASSWORD) as server:
        asyncio.run(scenario(server))


def _refused(link: Link) -> HoldfastError:
    async def call() -> HoldfastError:
        with pytest.raises(HoldfastError) as caught:
            await link.call(RECORD, KEY, ["b", "1"])
        return caught.value

    return asyncio.run(call())


def test_expired_certificate_is_an_outage_and_needs_no_other_authority(tmp_path: Path) -> None:
    async def scenario(server: RedisServer, expired: Certificates, authorities: Path) -> None:
        async with linked(server.url, ca=str(authorities), deadline="2s") as link:
            await link.call(RECORD, KEY, ["a", "1"])
            with _certificate(server, expired):
                told = [await in_thread(_refused, link), await in_thread(_refused_at_first, server.url, authorities)]
            assert [type(error) for error in told] == [StoreUnavailable, BadUrl]
            for error in told:
                assert "certificate has expired); renew it on the server" in one_line(error)
            assert await link.call(RECORD, KEY, ["b", "1"]) == b"created"

    with RedisServer(tls=True) as server:
        assert server.certificates
        expired, authorities = make_certificates(tmp_path, expired=True), tmp_path / "both.crt"
        authorities.write_text(server.certificates.authority.read_text() + expired.authority.read_text())
        asyncio.run(scenario(server, expired, authorities))


@contextmanager
def _certificate(server: RedisServer, other: Certificates) -> Iterator[None]:
    with server.client() as admin:
        assert server.certificates
        for files in (other, server.certificates):
            words = ("tls-cert-file", str(files.certificate), "tls-key-file", str(files.key))
            admin.execute_command("CONFIG", "SET", *words)
            if files is other:
                admin.client_kill_filter(_type="normal", skipme=True)
                yield


def _refused_at_first(url: str, authorities: Path) -> HoldfastError:
    return failure(url, ca=str(authorities), deadline="30s")


# -- servers that are too old to be had any more --------------------------------------------------------------


@pytest.mark.parametrize(
    ("hello", "says"),
    [
        (b"%1\r\n$5\r\nproto\r\n:3\r\n", "this is Redis 6.2.14; Holdfast needs Redis 7.0"),
        (
            b"-ERR unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `" + PASSWORD.encode() + b"`\r\n",
            "needs Redis 7.0",
        ),
    ],
)
def test_old_server(hello: bytes, says: str) -> None:
    with old_server(hello) as port:
        error = failure(f"redis://:{PASSWORD}@{HOST}:{port}")
    assert type(error) is StoreError
    assert says in one_line(error, PASSWORD)


def test_something_else_that_listens() -> None:
    with old_server(b"HTTP/1.1 400 Bad Request\r\n\r\n") as port:
        error = failure(f"redis://:{PASSWORD}@{HOST}:{port}")
    assert isinstance(error, StoreUnavailable)
    assert "does not talk like Redis" in one_line(error, PASSWORD)


@contextmanager
def old_server(hello: bytes) -> Iterator[int]:
    """Says `hello` when greeted, and then what Redis 6.2 says: to ROLE and INFO, and to scripts of a newer kind."""
    info = b"redis_version:6.2.14\r\nredis_mode:standalone\r\n"
    rest = b"*3\r\n$6\r\nmaster\r\n:0\r\n*0\r\n" + b"$%d\r\n%s\r\n" % (len(info), info)
    rest += b"-ERR Error compiling script\r\n" * 3

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for answer in (hello, rest):
            if await reader.read(4096):
                writer.write(answer)
        await reader.read()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(serve, HOST, 0)
        port.append(server.sockets[0].getsockname()[1])
        loop.append(asyncio.get_running_loop())
        ready.set()
        await stop.wait()
        server.close()

    port: list[int] = []
    loop: list[asyncio.AbstractEventLoop] = []
    ready, stop = threading.Event(), asyncio.Event()
    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert ready.wait(10)
    try:
        yield port[0]
    finally:
        loop[0].call_soon_threadsafe(stop.set)
        thread.join(10)
