"""One clear line for each thing that can be wrong with a URL, a server or its settings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from holdfast.errors import BadUrl, HoldfastError, StoreCorrupt, StoreError, StoreFull, StoreUnavailable
from holdfast.stores.postgres import connection as connection_module
from holdfast.stores.postgres.errors import NotMigrated, Raised
from tests.postgres.link.helpers import make_schema, opened
from tests.servers.callers import one_line
from tests.servers.loopback import HOST
from tests.servers.postgres import PostgresServer, server_url
from tests.support import free_port

SECRET = "p@ss:word/1"


@pytest.fixture(scope="module")
def guarded() -> Iterator[PostgresServer]:
    """A server that asks for passwords."""
    with PostgresServer(ask_password=True, max_connections=8, superuser_reserved_connections=3) as server:
        make_schema(server.url())
        yield server


def refusal(url: str, function: str = "levels", *arguments: object, **options: str | int) -> HoldfastError:
    """What a call is told."""

    async def scenario() -> HoldfastError:
        async with opened(url, **{"deadline": "300ms", **options}) as database:
            with pytest.raises(HoldfastError) as caught:
                await database.call(function, *arguments, safe=True)
            assert SECRET not in one_line(caught.value, SECRET)
            return caught.value

    return asyncio.run(scenario())


def says(error: HoldfastError, kind: type[HoldfastError], text: str) -> bool:
    assert type(error) is kind
    assert text in str(error)
    return True


@pytest.mark.parametrize("login", [{"password": "wrong"}, {"user": "nobody"}])
def test_wrong_password(guarded: PostgresServer, login: dict[str, str]) -> None:
    assert says(refusal(guarded.url(**login)), BadUrl, "wrong user or password; fix them in the URL")


def test_no_password(guarded: PostgresServer) -> None:
    url = f"postgresql://postgres@{HOST}:{guarded.port}/postgres"
    assert says(refusal(url), BadUrl, "the server wants a password; write postgresql://USER:PASSWORD@HOST/DATABASE")


def test_no_such_database(postgres_server: PostgresServer) -> None:
    error = refusal(postgres_server.url("missing"))
    assert says(error, BadUrl, "there is no database 'missing'; run: createdb missing, or fix it in the URL")


def test_no_such_role(postgres_server: PostgresServer) -> None:
    assert says(refusal(postgres_server.url(user="nobody")), BadUrl, "there is no role nobody; run: createuser nobody")


def test_no_tls(postgres_server: PostgresServer) -> None:
    assert says(refusal(postgres_server.url(sslmode="require")), BadUrl, "no TLS on this server; leave sslmode out")


def test_wrong_sslmode(postgres_server: PostgresServer) -> None:
    assert says(refusal(postgres_server.url(sslmode="maybe")), BadUrl, "sslmode is disable, allow, prefer, require")


def test_wrong_password_and_a_server_that_is_down(guarded: PostgresServer) -> None:
    """The one that is down may be the one that knows us: worth a second try."""
    down = free_port()
    error = refusal(server_url([guarded.port, down], "postgres", password="wrong"))
    assert says(error, StoreUnavailable, f"{guarded.port}: wrong user or password; fix them in the URL")
    assert f"{down}: connection refused" in str(error)


def test_nobody_listens() -> None:
    port = free_port()
    error = refusal(server_url([port], "postgres"))
    assert says(
        error, StoreUnavailable, f"{HOST}:{port}: connection refused: start PostgreSQL or fix the host and port"
    )
    assert "(tried for 300ms)" in str(error)


def test_no_such_host() -> None:
    error = refusal("postgresql://no.such.invalid/postgres")
    assert says(error, StoreUnavailable, "no.such.invalid:5432: the name is not known; fix it in the URL")


def test_something_else_listens() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    async def scenario() -> None:
        async with await asyncio.start_server(answer, HOST, 0) as server:
            url = server_url([server.sockets[0].getsockname()[1]], "postgres")
            async with opened(url, deadline="200ms") as database:
                with pytest.raises(StoreUnavailable, match="does not talk like PostgreSQL"):
                    await database.call("levels")

    asyncio.run(scenario())


def test_too_old_server(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection_module, "OLDEST", 99)
    assert says(refusal(url), StoreError, "PostgreSQL 15 is too old; use 99 or newer")


def test_too_many_connections(guarded: PostgresServer) -> None:
    guarded.query("DROP ROLE IF EXISTS joe")
    guarded.query("CREATE ROLE joe LOGIN PASSWORD 'p@ss:word/1'")
    taken = [guarded.connect(user="joe") for _ in range(5)]
    try:
        error = refusal(guarded.url(user="joe"))
    finally:
        for connection in taken:
            connection.close()
    assert says(error, StoreUnavailable, "too many connections; raise max_connections, or put pgbouncer in front")


def test_missing_schema(postgres_server: PostgresServer, database: str) -> None:
    assert says(refusal(postgres_server.url(database)), NotMigrated, "run: holdfast migrate")


def test_missing_function(url: str) -> None:
    assert says(
        refusal(url, "not_there", True), NotMigrated, "function holdfast.not_there(boolean) does not exist; run:"
    )


def test_missing_privileges(url: str, postgres_server: PostgresServer) -> None:
    postgres_server.query("DROP ROLE IF EXISTS stranger")
    postgres_server.query(f"CREATE ROLE stranger LOGIN PASSWORD '{SECRET}'")
    error = refusal(url.replace("postgres:", "stranger:"))
    assert says(error, StoreError, "permission denied for schema holdfast; GRANT it, or have the owner of schema")


@pytest.mark.parametrize(
    ("code", "kind", "text"),
    [
        ("53100", StoreFull, "the server has no room left"),
        ("XX001", StoreCorrupt, "stop, and restore the database"),
        ("25006", StoreUnavailable, "a standby, which takes no writes; name the primary in the URL, or all servers"),
        ("40001", StoreUnavailable, "transactions keep colliding"),
        ("40P01", StoreUnavailable, "transactions wait for each other"),
        ("55P03", StoreUnavailable, "another session holds a lock"),
        ("57P03", StoreUnavailable, "still starting"),
        ("22012", StoreError, "function refuse failed: refused for a test"),
        ("HF001", Raised, "refused for a test"),
    ],
)
def test_refusals_of_the_server(url: str, code: str, kind: type[HoldfastError], text: str) -> None:
    error = refusal(url, "refuse", code)
    assert says(error, kind, text)
    assert error.retryable is (kind in {StoreFull, StoreUnavailable})
    if isinstance(error, Raised):
        assert error.code == code


def test_wrong_argument_is_a_mistake_and_not_repeated(url: str) -> None:
    assert says(refusal(url, "record", object(), b"", deadline="60s"), StoreError, "cannot adapt type 'object'")


def test_lock_of_somebody_else_is_named(url: str, postgres_server: PostgresServer, database: str) -> None:
    with postgres_server.connect(database) as holder, holder.transaction():
        holder.execute("LOCK TABLE holdfast.recorded")
        error = refusal(url, "record", "a", b"", deadline="3s")
    assert says(error, StoreUnavailable, "another session holds a lock on what we need")


# -- after the first answer: what is refused then may pass ------------------------------------------------------


@pytest.mark.parametrize(
    ("refuse", "allow", "words"),
    [
        ("ALTER ROLE hf NOLOGIN", "ALTER ROLE hf LOGIN", "the role hf may not log in; ALTER ROLE hf LOGIN"),
        ("ALTER ROLE hf PASSWORD 'other'", f"ALTER ROLE hf PASSWORD '{SECRET}'", "wrong user or password"),
        (
            "ALTER ROLE hf RENAME TO gone",
            f"ALTER ROLE gone RENAME TO hf; ALTER ROLE hf PASSWORD '{SECRET}'",
            "wrong user",
        ),
        ("REVOKE USAGE ON SCHEMA holdfast FROM hf", "GRANT USAGE ON SCHEMA holdfast TO hf", "permission denied"),
    ],
)
def test_refusal_after_the_first_answer_is_an_outage(
    guarded: PostgresServer, refuse: str, allow: str, words: str
) -> None:
    async def scenario() -> None:
        async with opened(guarded.url(user="hf", password=SECRET), deadline="2s") as database:
            await database.call("levels")
            guarded.query(refuse)
            guarded.terminate_backends("usename IN ('hf', 'gone')")
            with pytest.raises(StoreUnavailable, match=words) as caught:
                await database.call("levels")
            assert "(tried for " in one_line(caught.value, SECRET)
            guarded.query(allow)
            await database.call("levels")

    grants = "GRANT USAGE ON SCHEMA holdfast TO hf; GRANT ALL ON ALL TABLES IN SCHEMA holdfast TO hf"
    guarded.query(f"CREATE ROLE hf LOGIN PASSWORD '{SECRET}'; {grants}")
    try:
        asyncio.run(scenario())
    finally:
        guarded.query("DROP OWNED BY hf; DROP ROLE hf")
