"""Tokens on a real server: good ones, bad ones, old ones, revoked ones."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.admin import tokens
from holdfast.admin.tokens import create_first
from holdfast.security.scopes import Scope
from holdfast.security.tokens import TOKEN_KIND, TokenText, read_token
from holdfast.server import auth, token_cache
from holdfast.server.token_cache import KnownTokens
from holdfast.stores import documents
from holdfast.stores.contract import DocumentPage, Store
from holdfast.stores.decorate import PassingStore
from holdfast.stores.open import open_store
from holdfast.testing.clock import SteppedClock
from tests.server.security.gate import Gate, open_gate
from tests.server.setting import Client
from tests.support import eventually

#: What docs/security.md promises of a revocation.
REVOKED_WITHIN_MS = 5_000
#: Nothing here is to take that long: a hang becomes a failure.
HANG_SECONDS = 60


def _status(client: Client, authorization: str | None) -> int:
    headers = {} if authorization is None else {"Authorization": authorization}
    return client.send("GET", "/v1/whoami", headers=headers).status


def test_a_token_is_told_who_it_is(gate: Gate) -> None:
    token = gate.token("enqueue:images", "read")
    answer = gate.with_token(token).get("/v1/whoami")
    assert answer["scopes"] == ["enqueue:images", "read"]
    assert answer["name"] == token.split("_")[1]


def test_only_the_whole_token_lets_in(gate: Gate) -> None:
    token = gate.token("read")
    _, token_id, secret = token.split("_")
    other = gate.token("admin").split("_")[2]
    client = gate.with_token(None)
    assert _status(client, f"Bearer {token}") == 200
    assert _status(client, f"bearer {token}") == 200
    bad = [None, "", "Bearer", "Bearer ", f"Basic {token}", token, f"Bearer {token} x", f"Bearer hf_{token_id}_"]
    bad += [f"Bearer hf_{token_id}_{'0' * 64}", f"Bearer hf_{token_id}_{secret[:-1]}", f"Bearer hf_{token_id}_{other}"]
    bad += [f"Bearer hf_{'0' * 12}_{secret}", f"Bearer {token.upper()}", f"Bearer hf_{token_id}_{secret}0"]
    assert [_status(client, header) for header in bad] == [401] * len(bad)


def test_a_refusal_tells_nothing_about_what_was_wrong(gate: Gate) -> None:
    token = gate.token("read")
    unknown = f"hf_{'0' * 12}_{'0' * 64}"
    wrong = f"{token[:-64]}{'0' * 64}"
    client = gate.with_token(None)
    answers = [
        client.send("GET", "/v1/whoami", headers={"Authorization": f"Bearer {text}"}) for text in (unknown, wrong)
    ]
    assert answers[0].body == answers[1].body
    assert answers[0].headers["www-authenticate"] == "Bearer"
    assert token.split("_")[1] not in answers[1].body.decode()


def test_only_a_hash_of_it_is_kept(gate: Gate, tmp_path: Path) -> None:
    token = gate.token("read", note="who has it")
    secret = token.split("_")[2]
    [document] = gate.run(lambda store: store.documents(TOKEN_KIND)).documents
    assert secret.encode() not in document.value
    kept = read_token(document.value)
    assert (kept.note, kept.scopes, len(kept.digest)) == ("who has it", ("read",), 64)
    everything = b"".join(path.read_bytes() for path in tmp_path.glob("tasks.db*") if path.is_file())
    assert kept.digest.encode() in everything
    assert secret.encode() not in everything


def test_a_new_token_is_good_at_once(gate: Gate) -> None:
    """Also just after the server has looked at the tokens that there were before."""
    first = gate.client("read")
    for _ in range(3):
        first.get("/v1/whoami")
        gate.client("read").get("/v1/whoami")


def test_a_revoked_token_is_refused_within_five_seconds(tmp_path: Path) -> None:
    clock = SteppedClock()
    with open_gate(tmp_path, clock=clock) as gate:
        token = gate.token("read")
        client, other = gate.with_token(token), gate.client("read")
        client.get("/v1/whoami")
        gate.revoke(token)
        clock.advance(REVOKED_WITHIN_MS - 1)
        assert client.send("GET", "/v1/whoami").status == 401
        other.get("/v1/whoami")


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """While requests wait, tokens are refreshed ten times as often as usual, which is soon enough."""
    assert token_cache.FRESH_MS < REVOKED_WITHIN_MS
    monkeypatch.setattr(auth, "FRESH_MS", token_cache.FRESH_MS // 10)


def _in_thread(call: Any) -> tuple[threading.Thread, list[Any]]:
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    return thread, answers


@pytest.mark.usefixtures("often")
def test_a_poll_ends_with_its_token(gate: Gate) -> None:
    """Otherwise whoever waits when it is revoked would be given one more task, up to 20 s later."""
    token = gate.token("work:mail")
    poller, waiter = gate.with_token(token), gate.with_token(token)
    body = {"worker_id": "w", "queues": ["mail"], "wait": "20s"}
    threads = [
        _in_thread(lambda: poller.send("POST", "/v1/reserve", body)),
        _in_thread(lambda: waiter.send("POST", "/v1/store/wait", {"wakeups": ["mail"], "timeout_ms": 20_000})),
    ]
    eventually(lambda: gate.server.service.waiters.waiting == 2, 10, "both wait")
    gate.revoke(token)
    for thread, answers in threads:
        thread.join(HANG_SECONDS)  # a poll that goes on answers 200 in 20 s
        assert [answer.status for answer in answers] == [401]
    assert gate.server.service.waiters.waiting == 0


@pytest.mark.usefixtures("often")
def test_a_stream_ends_with_its_token(gate: Gate) -> None:
    token = gate.token("read")
    with socket.create_connection(("127.0.0.1", gate.port), 20) as stream:
        stream.sendall(f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n\r\n".encode())
        assert b"200 OK" in stream.recv(65_536)
        gate.revoke(token)
        deadline = time.monotonic() + HANG_SECONDS
        while not stream.recv(65_536).endswith(b"0\r\n\r\n"):
            assert time.monotonic() < deadline, "the stream goes on"


def test_an_expired_token_is_refused(gate: Gate) -> None:
    client = gate.client("read", expires_in_ms=1_500)
    client.get("/v1/whoami")
    eventually(lambda: client.send("GET", "/v1/whoami").status == 401, 10, "it has expired")


def test_the_last_use_is_written_down_once(gate: Gate) -> None:
    client = gate.client("read")
    client.get("/v1/whoami")

    def used(store: Store) -> Any:
        return store.documents(TOKEN_KIND)

    def versions() -> list[tuple[bool, int]]:
        return [(read_token(each.value).used_at_ms is not None, each.version) for each in gate.run(used).documents]

    eventually(lambda: versions() == [(True, 2)], 10)
    for _ in range(20):
        client.get("/v1/whoami")
    assert versions() == [(True, 2)]


def test_noting_the_use_does_not_bring_back_a_revoked_token(gate: Gate) -> None:
    for _ in range(10):
        token = gate.token("read")
        gate.with_token(token).get("/v1/whoami")
        gate.revoke(token)
    assert gate.run(lambda store: store.documents(TOKEN_KIND)).documents == []


def test_a_damaged_token_lets_nobody_in_and_harms_nobody(gate: Gate) -> None:
    client = gate.client("read")
    gate.run(lambda store: documents.put(store, TOKEN_KIND, "0" * 12, b'{"digest":1}', 0))
    gate.run(lambda store: documents.put(store, TOKEN_KIND, "1" * 12, b"\xff", 0))
    assert _status(gate.with_token(None), f"Bearer hf_{'0' * 12}_{'0' * 64}") == 401
    client.get("/v1/whoami")


def test_strangers_do_not_keep_the_store_busy(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    client = gate.client("read")
    client.get("/v1/whoami")
    asked: list[str] = []
    ask = gate.store.documents

    async def counted(kind: str, **filters: Any) -> Any:
        asked.append(kind)
        return await ask(kind, **filters)

    monkeypatch.setattr(gate.store, "documents", counted)
    begun = time.monotonic()
    threads = [
        _in_thread(lambda n=n: _status(gate.with_token(None), f"Bearer hf_{n:012}_{'0' * 64}")) for n in range(20)
    ]
    for thread, answers in threads:
        thread.join(20)
        assert answers == [401]
    most = 2 + (time.monotonic() - begun) / 0.25
    assert len(asked) <= most


@pytest.mark.parametrize("scope", list(Scope))
def test_secrets_in_arguments_are_shown_to_those_who_have_to_do_with_them(scope: Scope, gate: Gate) -> None:
    admin = gate.client("admin")
    task_id = admin.enqueue("mail", arguments={"to": "ann", "login": {"password": "hunter2"}}, headers={"token": "t"})
    text = f"{scope}:mail" if scope in (Scope.ENQUEUE, Scope.WORK) else str(scope)
    client = gate.client(text)
    shown = client.get(f"/v1/tasks/{task_id}")
    hidden = scope is Scope.READ
    assert shown["arguments"] == {"to": "ann", "login": {"password": "***" if hidden else "hunter2"}}
    assert shown["headers"] == {"token": "***" if hidden else "t"}
    raw = client.send("POST", "/v1/store/get", {"task_ids": [task_id]})
    assert raw.status == 200
    import base64

    payload = base64.b64decode(raw.json[0]["payload"])
    assert (b"hunter2" in payload) is not hidden


def test_those_who_only_look_see_no_secret_in_lists_either(gate: Gate) -> None:
    admin, reader = gate.client("admin"), gate.client("read")
    secret = {"password": "hunter2"}
    task_id = admin.dead_letter(arguments=secret)
    schedule = {"type": "add", "arguments": secret, "every": "1h", "headers": {"auth": "hunter2"}}
    admin.put("/v1/schedules/nightly", schedule)
    admin.post("/v1/dead-letters/discard", {"task_ids": [admin.dead_letter(arguments=secret)], "reason": "old"})
    error = {"type": "ValueError", "message": "cannot log in with password=hunter2", "traceback": "token: hunter2"}
    claim = admin.claim(arguments=secret)
    one = f"/v1/tasks/{claim['task_id']}"
    admin.post(f"{one}/fail", {"token": claim["token"], "error": error, "retryable": False})
    paths = ["/v1/tasks", f"/v1/tasks/{task_id}", one, f"{one}/history", f"{one}/why", "/v1/dead-letters"]
    paths += ["/v1/dead-letters/by-error", "/v1/schedules", "/v1/schedules/nightly"]
    for path in paths:
        answer = reader.send("GET", path)
        assert answer.status == 200
        assert b"hunter2" not in answer.body, path
    assert b"hunter2" in admin.send("GET", f"{one}/why").body
    bodies = [reader.send("POST", "/v1/store/find", {"query": {}}).body]
    for kind in ("discard", "schedule"):
        page = reader.post("/v1/store/documents", {"kind": kind})
        bodies += [b64decode(document["value"]) for document in page["documents"]]
    assert len(bodies) == 3
    for body in bodies:
        for spelled in (b"hunter2", b"aHVudGVyMg", b"h1bnRlcjI", b"odW50ZXIy"):  # base64 at its three places
            assert spelled not in body


class LooksTogether:
    """A store of which two look at its documents before either goes on."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._both = asyncio.Barrier(2)

    async def documents(self, kind: str, **filters: Any) -> DocumentPage:
        found = await self._store.documents(kind, **filters)
        await self._both.wait()
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_servers_that_start_at_once_make_one_first_token(tmp_path: Path) -> None:
    async def start_two() -> list[TokenText | None]:
        store = open_store(f"sqlite:///{tmp_path}/tasks.db")
        await store.migrate()
        empty: Any = LooksTogether(store)
        made = await asyncio.gather(*(create_first(empty, now_ms=1) for _ in range(2)))
        assert len((await store.documents(TOKEN_KIND)).documents) == 1
        await store.close()
        return made

    assert sum(token is not None for token in asyncio.run(start_two())) == 1


def test_two_authorization_headers_are_refused(gate: Gate) -> None:
    """Whoever stands in front may have checked the other one."""
    good, bad = gate.token("admin"), f"hf_{'0' * 12}_{'0' * 64}"
    for pair in ((good, bad), (bad, good), (good, good)):
        lines = "".join(f"Authorization: Bearer {token}\r\n" for token in pair)
        with socket.create_connection(("127.0.0.1", gate.port), 20) as line:
            line.sendall(f"GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode())
            assert line.recv(65_536).startswith(b"HTTP/1.1 401")


class _CountingDocuments(PassingStore):
    """Knows how often all tokens were read, and how often one."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.all = self.one = 0

    async def documents(self, kind: str, *, names: Sequence[str] | None = None, **filters: Any) -> DocumentPage:
        if names is None:
            self.all += 1
        else:
            self.one += 1
        return await self.inner.documents(kind, names=names, **filters)


def test_strangers_with_ids_that_they_make_up_do_not_have_all_tokens_read(tmp_path: Path) -> None:
    async def scenario() -> None:
        clock = SteppedClock()
        store = _CountingDocuments(open_store(f"sqlite:///{tmp_path}/tasks.db"))
        try:
            await store.migrate()
            known = KnownTokens(store, clock)
            text = await tokens.create(store, ["read"], now_ms=clock.now_ms())
            assert await known.get(text.token_id) is not None
            later = await tokens.create(store, ["read"], now_ms=clock.now_ms())
            store.all = store.one = 0
            assert await known.get(later.token_id) is not None  # made after the last look at all of them
            assert (store.all, store.one) == (0, 1)
            assert [await known.get("made up") for _ in range(500)] == [None] * 500
            assert (store.all, store.one) == (0, 2)
            strangers = [asyncio.create_task(known.get(f"{number:012x}")) for number in range(500)]
            for _ in range(20):
                await asyncio.sleep(0)
            assert await known.get(text.token_id) is not None  # holds up nobody who is known
            assert store.all == 0
            assert store.one <= 10
            for stranger in strangers:
                stranger.cancel()
            await asyncio.gather(*strangers, return_exceptions=True)
        finally:
            await store.close()

    asyncio.run(scenario())
