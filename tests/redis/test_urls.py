"""What a Redis URL may say, and what it is told when it says something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import BadUrl
from holdfast.stores.redis.urls import Address, parse_redis_url
from holdfast.stores.urls import hidden


def test_plain_url_with_defaults() -> None:
    settings = parse_redis_url("redis://localhost")
    assert settings.kind == "single"
    assert settings.addresses == (Address("localhost", 6379),)
    assert (settings.tls, settings.username, settings.password, settings.database) == (False, None, None, 0)
    assert (settings.durability, settings.wait_ms, settings.deadline_ms) == ("local", 500, 5_000)
    assert (settings.prefix, settings.partitions, settings.protocol, settings.ca) == ("hf", None, 3, "")


def test_everything_at_once(tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_text("")
    settings = parse_redis_url(
        f"rediss://joe:p%40ss@[::1]:7000/3?durability=strict&wait_ms=250&deadline=1m30s&prefix=shop.eu&"
        f"partitions=8&protocol=2&ca={authority}"
    )
    assert settings.addresses == (Address("::1", 7000),)
    assert (settings.tls, settings.username, settings.password, settings.database) == (True, "joe", "p@ss", 3)
    assert (settings.durability, settings.wait_ms, settings.deadline_ms) == ("strict", 250, 90_000)
    assert (settings.prefix, settings.partitions, settings.protocol) == ("shop.eu", 8, 2)
    assert settings.ca == str(authority)


def test_sentinels_name_a_service() -> None:
    settings = parse_redis_url("redis+sentinel://:secret@a,b:26380,[fe80::1]:5/mymaster/2")
    assert settings.kind == "sentinel"
    assert settings.addresses == (Address("a", 26379), Address("b", 26380), Address("fe80::1", 5))
    assert (settings.service, settings.database, settings.password) == ("mymaster", 2, "secret")


@pytest.mark.parametrize(("scheme", "tls"), [("redis+cluster", False), ("rediss+cluster", True)])
def test_cluster_has_many_hosts(scheme: str, tls: bool) -> None:
    settings = parse_redis_url(f"{scheme}://a:7000,b:7001/")
    assert (settings.kind, settings.tls) == ("cluster", tls)
    assert settings.addresses == (Address("a", 7000), Address("b", 7001))


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://localhost?durabilty=strict", "unknown option 'durabilty'"),
        ("redis://localhost?durability=all", "durability=all: write local, replicated or strict"),
        ("redis://localhost?wait_ms=0", "wait_ms=0: write a whole number from 1 to 60000"),
        ("redis://localhost?wait_ms=soon", "wait_ms=soon"),
        ("redis://localhost?deadline=never", "deadline=never: write a duration"),
        ("redis://localhost?deadline=1h", "deadline=1h: write a duration from 100ms to 10m"),
        ("redis://localhost?prefix={a}", "prefix={a}"),
        ("redis://localhost?partitions=0", "partitions=0"),
        ("redis://localhost?protocol=4", "protocol=4: write a whole number from 2 to 3"),
        ("redis://localhost?ca=x.crt", "ca=x.crt: there is no such file"),
        ("redis://localhost?wait_ms=1&wait_ms=2", "'wait_ms' is given twice"),
        ("redis://localhost/one", "the database must be a number"),
        ("redis://localhost/1/2", "the database must be a number"),
        ("redis://localhost:port", "a port must be a number"),
        ("redis://localhost:70000", "a port must be a number from 1 to 65535"),
        ("redis://", "a host is missing"),
        ("redis://host..example", "that host cannot be"),
        ("redis://a,b", "more than one host"),
        ("redis+sentinel://a:1", "the name of the service is missing"),
        ("redis://%2Ftmp%2Fredis.sock", "a unix socket, over which Redis is not reached here"),
        ("redis+cluster://a:1/2", "a cluster has one database only"),
        ("redis:localhost", "is not a Redis URL"),
        ("redix://localhost", "is not a Redis URL"),
    ],
)
def test_a_mistake_is_named_in_one_line(url: str, says: str) -> None:
    with pytest.raises(BadUrl) as caught:
        parse_redis_url(url)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_authority_without_tls_is_a_mistake(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("")
    with pytest.raises(BadUrl, match="write rediss://"):
        parse_redis_url(f"redis://localhost?ca={tmp_path}/ca.crt")


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hush@localhost?bad=1",
        "redis://joe:hu/sh@localhost",
        "redis://joe:hu?sh@localhost",
        "redis://joe:hu@sh@localhost:x",
        "redis://hush@localhost",
        "redis+sentinel://:hush@a:1,b:2",
        "redix://:hush@localhost",
    ],
)
def test_password_is_never_shown(url: str) -> None:
    with pytest.raises(BadUrl) as caught:
        parse_redis_url(url)
    assert "hush" not in str(caught.value)
    assert "hu" not in hidden(url).replace("://", "")


def test_settings_do_not_show_the_password() -> None:
    assert "hush" not in repr(parse_redis_url("redis://joe:hush@localhost"))
    assert parse_redis_url("redis://joe:hush@localhost/1").url == "redis://joe:***@localhost/1"
