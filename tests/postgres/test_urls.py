"""What a PostgreSQL URL may say, and what it is told when it says something else."""

from __future__ import annotations

import pytest

from holdfast.errors import BadUrl
from holdfast.stores.postgres.urls import Address, Login, parse_postgres_url


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_plain_url_with_defaults(scheme: str) -> None:
    settings = parse_postgres_url(f"{scheme}://localhost/shop")
    assert settings.login == Login(addresses=(Address("localhost", 5432),), database="shop")
    assert (settings.schema, settings.durability, settings.deadline_ms) == ("holdfast", "local", 5_000)
    assert (settings.prepare, settings.listen, settings.connections) == (False, "same", 10)


def test_everything_at_once() -> None:
    settings = parse_postgres_url(
        "postgresql://joe:p%40ss@[::1]:7000/shop?schema=tasks_eu&durability=strict&deadline=1m30s&prepare=on&"
        "listen=poll&connections=3&sslmode=verify-full&sslrootcert=/etc/ca.crt&target_session_attrs=read-write"
    )
    assert settings.login == Login(
        addresses=(Address("::1", 7000),),
        database="shop",
        user="joe",
        password="p@ss",
        options={"sslmode": "verify-full", "sslrootcert": "/etc/ca.crt"},
    )
    assert (settings.schema, settings.durability, settings.deadline_ms) == ("tasks_eu", "strict", 90_000)
    assert (settings.prepare, settings.listen, settings.connections) == (True, "poll", 3)


def test_several_hosts() -> None:
    login = parse_postgres_url("postgresql://joe:secret@a,b:5433,[fe80::1]:5/shop").login
    assert login.addresses == (Address("a", 5432), Address("b", 5433), Address("fe80::1", 5))


@pytest.mark.parametrize("url", ["postgresql://%2Frun%2Fpg/shop", "postgresql:///shop?host=/run/pg"])
def test_socket_directory(url: str) -> None:
    assert parse_postgres_url(url).login.addresses == (Address("/run/pg", 5432),)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:///shop?host=/run/pg&port=5433",
        "postgresql:///shop?port=5433&host=/run/pg",
        "postgresql://joe@:5433/shop?host=/run/pg",
        "postgresql:///shop?host=/run/pg:5433",
        "postgresql://%2Frun%2Fpg:5433/shop",
        "postgresql://%2Frun%2Fpg/shop?port=5433",
    ],
)
def test_socket_with_a_port_as_libpq_has_it(url: str) -> None:
    assert parse_postgres_url(url).login.addresses == (Address("/run/pg", 5433),)


def test_hosts_and_ports_behind_the_question_mark() -> None:
    def addresses(query: str) -> list[str]:
        return [str(address) for address in parse_postgres_url(f"postgresql:///shop?{query}").login.addresses]

    assert addresses("host=a,b&port=1,2") == ["a:1", "b:2"]
    assert addresses("host=a,b&port=9") == ["a:9", "b:9"]


def test_options_of_managed_providers_are_passed_on() -> None:
    url = "postgresql://joe:hush@db.example/shop?sslmode=require&connect_timeout=10&options=endpoint%3Dblue"
    options = parse_postgres_url(url).login.options
    assert options == {"sslmode": "require", "connect_timeout": "10", "options": "endpoint=blue"}


@pytest.mark.parametrize(
    "listen",
    ["postgresql://joe:hush@direct:5433/shop?sslmode=require", "postgresql%3A%2F%2Fjoe%3Ahush%40direct%3A5433%2Fshop"],
)
def test_listening_past_the_pooler(listen: str) -> None:
    settings = parse_postgres_url(f"postgresql://joe:hush@pooler:6432/shop?prepare=off&listen={listen}")
    assert isinstance(settings.listen, Login)
    assert settings.listen.addresses == (Address("direct", 5433),)
    assert settings.listen.password == "hush"
    assert settings.login.addresses == (Address("pooler", 6432),)
    assert settings.url.startswith(
        "postgresql://joe:***@pooler:6432/shop?prepare=off&listen=postgresql://joe:***@direct"
    )
    assert "hush" not in settings.url + repr(settings)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("postgresql://localhost/a?durabilty=strict", "unknown option 'durabilty'; there are schema, durability"),
        ("postgresql://localhost/a?durability=all", "durability=all: write local, replicated or strict"),
        ("postgresql://localhost/a?deadline=never", "deadline=never: write a duration"),
        ("postgresql://localhost/a?deadline=1h", "deadline=1h: write a duration from 100ms to 10m"),
        ("postgresql://localhost/a?schema=Tasks", "schema=Tasks: write up to 48 small letters"),
        ("postgresql://localhost/a?schema=pg_tasks", "schema=pg_tasks: write up to 48 small letters"),
        ("postgresql://localhost/a?schema=a;b", "schema=a;b"),
        ("postgresql://localhost/a?prepare=yes", "prepare=yes: write on or off"),
        ("postgresql://localhost/a?connections=0", "connections=0: write a whole number from 1 to 1000"),
        ("postgresql://localhost/a?listen=maybe", "listen=maybe: write same, poll, or the URL"),
        ("postgresql://localhost/a?prepare=on&prepare=on", "'prepare' is given twice"),
        ("postgresql://localhost/a?sslmode=require&sslmode=allow", "'sslmode' is given twice"),
        ("postgresql://localhost/a?target_session_attrs=any", "tasks can only be kept on the primary"),
        ("postgresql://localhost/a?password=x", "'password' has its place before the question mark"),
        ("postgresql://localhost/a?statement_timeout=5", "unknown option 'statement_timeout'"),
        ("postgresql://localhost", "the name of the database is missing"),
        ("postgresql://localhost/a/b", "the name of the database is missing"),
        ("postgresql://localhost:port/a", "a port must be a number"),
        ("postgresql://localhost:70000/a", "a port must be a number from 1 to 65535"),
        ("postgresql:///a", "a host is missing"),
        ("postgresql://host..example/a", "that host cannot be"),
        ("postgresql://a,,b/a", "a host is missing"),
        ("postgresql://a/b?host=/run", "leave one out"),
        ("postgresql://a:1/b?port=2", "leave one out"),
        ("postgresql://a,b,c/b?port=1,2", "one for each of the 3 hosts"),
        ("postgresql://a/b?port=many", "a port must be a number"),
        ("postgresql://a/b?connect_timeout=5s", "write a whole number of seconds"),
        ("postgresql:localhost", "not a PostgreSQL URL"),
        ("postgrex://localhost", "not a PostgreSQL URL"),
    ],
)
def test_a_mistake_is_named_in_one_line(url: str, says: str) -> None:
    with pytest.raises(BadUrl) as caught:
        parse_postgres_url(url)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://joe:hush@localhost/a?bad=1",
        "postgresql://joe:hu/sh@localhost/a",
        "postgresql://joe:hu?sh@localhost/a",
        "postgresql://joe:hu@sh@localhost:x/a",
        "postgresql://joe:hush@a,b:x/a",
        "postgrex://joe:hush@localhost",
        "postgresql://localhost/a?bad=1&listen=postgresql://joe:hush@b/a",
        "postgresql://localhost/a?listen=postgresql%3A%2F%2Fjoe%3Ahush%40b",
        "postgresql://localhost/a?password=hush",
    ],
)
def test_password_is_never_shown(url: str) -> None:
    with pytest.raises(BadUrl) as caught:
        parse_postgres_url(url)
    message = str(caught.value)
    assert "hush" not in message
    assert "sh@" not in message
    assert "joe:h" not in message


def test_settings_do_not_show_the_password() -> None:
    assert "hush" not in repr(parse_postgres_url("postgresql://joe:hush@localhost/a"))
    assert parse_postgres_url("postgresql://joe:hush@localhost/a").url == "postgresql://joe:***@localhost/a"
