"""What `doctor` says about a server: one line for each setting that does not survive something."""

from __future__ import annotations

import asyncio

from holdfast.stores.contract import Finding
from holdfast.stores.redis.doctor import probe
from tests.redis.link.helpers import linked
from tests.servers.cluster import RedisCluster
from tests.servers.flavours import DURABLE, FAST
from tests.servers.loopback import HOST
from tests.servers.redis_server import RedisServer
from tests.servers.replicas import Replicas
from tests.support import eventually


def findings(url: str, **options: str | int) -> dict[str, Finding]:
    """The findings by check; the last one of each."""

    async def look() -> list[Finding]:
        async with linked(url, deadline="2s", **options) as link:
            return await probe(link)

    found = asyncio.run(look())
    assert all("\n" not in finding.text for finding in found)
    return {finding.check: finding for finding in found}


def levels(found: dict[str, Finding]) -> dict[str, str]:
    return {check: finding.level for check, finding in found.items()}


def test_good_server() -> None:
    with RedisServer(profile=DURABLE, maxmemory="1gb") as server:
        for protocol in (2, 3):
            found = findings(server.url, protocol=protocol)
            assert levels(found) == {
                "server": "ok",
                "eviction": "ok",
                "memory": "ok",
                "persistence": "ok",
                "replicas": "note",
            }
            assert found["server"].text.startswith("Redis 7.")


def test_valkey_is_called_by_its_name(valkey_server: RedisServer) -> None:
    assert findings(valkey_server.url)["server"].text.startswith("Valkey ")


def test_everything_wrong_at_once(any_server: RedisServer) -> None:
    any_server.command("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    found = findings(any_server.url, durability="strict")
    assert levels(found) == {
        "server": "ok",
        "eviction": "problem",
        "memory": "note",
        "persistence": "problem",
        "replicas": "problem",
        "cut off": "warning",
    }
    assert "set maxmemory-policy noeviction" in found["eviction"].text
    assert "set appendonly yes" in found["persistence"].text
    assert "min-replicas-to-write" in found["cut off"].text


def test_weak_syncing(durable_server: RedisServer) -> None:
    durable_server.command("CONFIG", "SET", "appendfsync", "everysec")
    durable_server.command("CONFIG", "SET", "no-appendfsync-on-rewrite", "yes")
    found = findings(durable_server.url)
    assert levels(found)["persistence"] == levels(found)["rewrite"] == "warning"
    assert "up to 2 s" in found["persistence"].text
    durable_server.command("CONFIG", "SET", "appendfsync", "no")
    assert "up to 30 s" in findings(durable_server.url)["persistence"].text


def test_memory_that_runs_out(redis_server: RedisServer) -> None:
    used = int(redis_server.info("memory")["used_memory"])
    redis_server.command("CONFIG", "SET", "maxmemory", used + used // 10)
    assert levels(findings(redis_server.url))["memory"] == "warning"


def test_hidden_settings_are_a_note() -> None:
    with RedisServer(profile={**FAST, "user joe": "on >hush ~* +@all -config"}) as server:
        found = findings(f"redis://joe:hush@{HOST}:{server.port}")
    assert found["persistence"].level == "note"
    assert "CONFIG GET is refused" in found["persistence"].text


def test_replicas_against_the_level() -> None:
    with Replicas(2, profile=FAST) as servers:
        expected = {"local": "note", "replicated": "warning", "strict": "ok"}
        assert {level: findings(servers.url, durability=level)["replicas"].level for level in expected} == expected
        assert findings(servers.replicas[0].url)["replicas"].level == "problem"


def test_cluster(redis_cluster: RedisCluster) -> None:
    found = findings(redis_cluster.url, durability="strict")
    assert found["cluster"].text == "3 masters, all slots served"
    assert levels(found)["replicas"] == "ok"
    lost = redis_cluster.masters()[0]
    for server in [*redis_cluster.replicas_of(lost), lost]:
        server.kill()
    eventually(lambda: findings(redis_cluster.url)["cluster"].level == "problem", 20.0, "the cluster calls itself bad")
