"""A user with exactly the permissions that the documentation names, and one with fewer.

Every sixteenth case of the kit on each of Redis and Valkey; `make test-all` runs all of them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from importlib.resources import files

import pytest

from holdfast.errors import StoreError
from holdfast.stores.open import open_store
from holdfast.testing.kit.conformance import CASES, Case, run_case
from holdfast.testing.kit.kit import LEASE_MS, Kit
from tests.redis.test_memory_pressure import Harness
from tests.servers.callers import one_line
from tests.servers.flavours import DURABLE, FLAVOURS, Flavour
from tests.servers.harness import RedisHarness
from tests.servers.redis_server import RedisServer
from tests.stores.sampling import on_each
from tests.support import ROOT

#: One word in a setting of the server, and a part of many a message.
PASSWORD = "s3cret"
LUA = files("holdfast.stores.redis").joinpath("lua")


def documented() -> list[str]:
    """The words that the documentation gives to ACL SETUSER, after the name of the user."""
    page = (ROOT / "docs" / "stores" / "redis.md").read_text("utf-8")
    found = re.search(r"^ACL SETUSER holdfast (.*)$", page, re.MULTILINE)
    assert found
    return found[1].replace("PASSWORD", PASSWORD).split()


def give(server: RedisServer, *words: str) -> str:
    """The URL of a user that has these permissions."""
    server.command("ACL", "SETUSER", "holdfast", "reset", *words)
    return server.url.replace("redis://", f"redis://holdfast:{PASSWORD}@")


@pytest.fixture(scope="module", params=FLAVOURS)
def guarded(request: pytest.FixtureRequest) -> Iterator[RedisServer]:
    flavour: Flavour = request.param
    with RedisServer(flavour, profile=DURABLE) as server:
        yield server


@pytest.mark.parametrize(("guarded", "case"), on_each(FLAVOURS, CASES, every=16), indirect=["guarded"])
def test_promise_is_kept_with_the_documented_permissions(case: Case, guarded: RedisServer) -> None:
    words = [word.replace("{hf:", "{kit-") for word in documented()]
    url = give(guarded, *words)
    asyncio.run(run_case(case, lambda: RedisHarness(url, lambda: [guarded])))


def first_call(url: str) -> str:
    """What the first call says."""

    async def scenario() -> str:
        store = open_store(url)
        try:
            await store.counts()
        except StoreError as error:
            return one_line(error, PASSWORD)
        finally:
            await store.close()
        return ""

    return asyncio.run(scenario())


def test_each_permission_is_needed_and_named_if_it_is_missing(guarded: RedisServer) -> None:
    words = documented()
    assert first_call(give(guarded, *words)) == ""
    optional = {"+role", "+wait"}
    for word in words:
        if word.startswith("+") and word not in optional:
            message = first_call(give(guarded, *words, word.replace("+", "-")))
            assert f"user holdfast may not run {word[1:].upper()}; run: ACL SETUSER holdfast {word}" in message
    assert first_call(give(guarded, *words, "-role", "-wait")) == ""
    message = first_call(give(guarded, *words, "-wait") + "?durability=replicated")
    assert "may not run WAIT; run: ACL SETUSER holdfast +wait" in message


def test_everything_but_dangerous_commands_is_not_enough(guarded: RedisServer) -> None:
    url = give(guarded, "on", f">{PASSWORD}", "~*", "+@all", "-@dangerous")
    assert "may not run INFO; run: ACL SETUSER holdfast +info" in first_call(url)


def test_keys_that_are_missing_are_named(guarded: RedisServer) -> None:
    url = give(guarded, *documented()) + "?prefix=other"
    assert "may not use the keys {other:*; run: ACL SETUSER holdfast ~{other:*" in first_call(url)


def test_the_check_knows_every_command_of_the_scripts() -> None:
    texts = {entry.name: entry.read_text("utf-8") for entry in LUA.iterdir() if entry.name.endswith(".lua")}
    checked = set(re.findall(r"'([A-Z]+)'", texts.pop("permissions.lua")))
    used = {name for text in texts.values() for name in re.findall(r"\bp?call\('([A-Z]+)'", text)}
    assert used == checked
    outside = {"EVAL", "EVALSHA", "BLPOP", "WAIT", "ROLE"}
    assert {word[1:].upper() for word in documented() if word.startswith("+")} == used | outside


def test_a_user_without_info_still_gets_expired_claims(guarded: RedisServer) -> None:
    """The permission may be taken away from a store that is in use."""

    async def scenario() -> None:
        harness = Harness(give(guarded, *documented()))
        kit = Kit(harness, await harness.open())
        claim = await kit.claim()
        assert (await kit.store.expired()).claims == []
        guarded.command("ACL", "SETUSER", "holdfast", "-info")
        kit.clock.advance(LEASE_MS + 1)
        assert [expired.task_id for expired in (await kit.store.expired()).claims] == [claim.task_id]
        await kit.close()
        guarded.flush()

    asyncio.run(scenario())
