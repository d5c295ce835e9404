"""What is said when a server does not answer, or something else does, and what is tried again."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.errors import BadUrl, HoldfastError, StaleEpoch, StoreError, StoreFull, StoreUnavailable
from holdfast.stores.contract import Store
from holdfast.stores.open import open_store
from holdfast.stores.remote import problems
from holdfast.stores.remote.problems import Problem, write_problem
from tests.remote.calling import counting, url_of, with_store
from tests.remote.scripted import Peer, Script, always, scripted, silent
from tests.servers.proxy import FaultProxy, LineFaults
from tests.servers.wire import AnyWire
from tests.support import free_port


def test_an_answer_that_says_not_now_is_asked_for_again() -> None:
    def script(peer: Peer) -> None:
        for status in ("503 Service Unavailable", "429 Too Many Requests", "502 Bad Gateway", "200 OK"):
            peer.asked()
            peer.answer(b"[]" if status == "200 OK" else b"busy", status)

    with scripted(script) as server:
        assert with_store(url_of(server), counting) == []
        assert len(server.requests) == 4


def test_what_is_no_server_any_more_may_be_one_again() -> None:
    """A proxy in between speaks for a server that starts anew: nobody has to mend the URL."""

    def script(peer: Peer) -> None:
        peer.asked()
        if peer.number == 1:
            peer.answer(b"<html>not yet", "404 Not Found")
        elif peer.number == 2:
            peer.send(b"SSH-2.0-OpenSSH\r\n")
        else:
            peer.answer(b"[]", "200 OK", "connection: close")

    async def use(store: Store) -> None:
        assert await store.counts() == []
        assert await store.counts() == []

    with scripted(script) as server:
        with_store(url_of(server), use)
        assert len(server.requests) == 4


def test_a_token_that_is_refused_after_the_first_answer_is_an_outage() -> None:
    def script(peer: Peer) -> None:
        peer.asked()
        if peer.number in {1, 2}:
            peer.answer(
                problem(problems.UNAUTHORIZED.problem("no")), "401 Unauthorized", problem_type(), "connection: close"
            )
        else:
            peer.answer(b"[]", "200 OK", "connection: close")

    async def use(store: Store) -> None:
        assert await store.counts() == []
        assert await store.counts() == []

    with scripted(script) as server:
        with_store(url_of(server), use)
        assert len(server.requests) == 4


def test_a_token_that_stays_refused_is_unavailable_in_the_same_words() -> None:
    def script(peer: Peer) -> None:
        peer.asked()
        peer.answer(b"[]", "401 Unauthorized" if peer.number else "200 OK", "connection: close")

    async def use(store: Store) -> None:
        await store.counts()
        await store.counts()

    with scripted(script) as server, pytest.raises(StoreUnavailable, match="refused this token"):
        with_store(url_of(server, "?deadline=300ms"), use)


def test_what_stays_no_server_is_unavailable() -> None:
    def script(peer: Peer) -> None:
        peer.asked()
        peer.answer(
            b"[]" if peer.number == 0 else b"<html>", "404 No" if peer.number else "200 OK", "connection: close"
        )

    async def use(store: Store) -> None:
        await store.counts()
        await store.counts()

    with scripted(script) as server, pytest.raises(StoreUnavailable, match="not a Holdfast server"):
        with_store(url_of(server, "?deadline=300ms"), use)


def test_time_is_up_before_the_server_wants_to_be_asked_again() -> None:
    refusal = problem(problems.TOO_MANY_REQUESTS.problem("at most 5 a second"))
    with scripted(always(refusal, "429 Too Many Requests", problem_type(), "retry-after: 60")) as server:
        with pytest.raises(StoreUnavailable, match="at most 5 a second"):
            with_store(url_of(server), counting)
        assert len(server.requests) == 1


def test_an_answer_that_takes_longer_than_the_deadline_is_waited_for_while_it_comes() -> None:
    async def use(store: Store) -> None:
        assert await store.counts() == []

    with (
        scripted(always(b"[" + b" " * 3_000_000 + b"]")) as server,
        FaultProxy(("127.0.0.1", server.port), wire=AnyWire, faults=LineFaults(bytes_per_second=1_000_000)) as line,
    ):
        with_store(line.url_for(url_of(server, "?deadline=2s")), use)
        assert len(server.requests) == 1


def cut_off(peer: Peer) -> None:
    peer.asked()
    peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n[]")


@pytest.mark.parametrize(
    ("script", "error", "says"),
    [
        (silent, StoreUnavailable, "no answer from 127.0.0.1:"),
        (cut_off, StoreUnavailable, "closed the connection"),
        (lambda peer: peer.send(b"SSH-2.0-OpenSSH\r\n"), BadUrl, "not a Holdfast server (no HTTP): fix the host, port"),
        (
            lambda peer: peer.send(b"HTTP/1.1 200 OK\r\nBearer CANARY\r\n\r\n"),
            BadUrl,
            "not a Holdfast server (malformed HTTP): fix the host, port",
        ),
        (always(b"<html>", "404 Not Found"), BadUrl, "not a Holdfast server: fix the host, port"),
        (always(b"<html>"), StoreError, "the answer to counts is not one that this version knows"),
        (always(b'{"a": 1}'), StoreError, "the answer to counts is not one that this version knows"),
        (always(b"", "301 Moved", "location: https://u:CANARY@x/"), BadUrl, "redirects to https://***@x/"),
        (always(b"", "401 Unauthorized"), BadUrl, "the server refused this token: make one with"),
        (always(b"oops", "500 Internal Server Error"), StoreUnavailable, "the server answered with status 500"),
    ],
    ids=["silent", "cut off", "ssh", "malformed", "web server", "html", "other json", "redirect", "token", "broken"],
)
def test_trouble_is_named_in_one_line(script: Script, error: type[HoldfastError], says: str) -> None:
    with scripted(script) as server, pytest.raises(error) as caught:
        with_store(url_of(server, "?deadline=300ms"), counting)
    assert says in str(caught.value)
    assert f"http://***@127.0.0.1:{server.port}" in str(caught.value)
    assert "CANARY" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_nobody_listens() -> None:
    with pytest.raises(StoreUnavailable, match=r"connection refused at 127\.0\.0\.1:.*start the server") as caught:
        with_store(f"http://CANARY@127.0.0.1:{free_port()}?deadline=200ms", counting)
    assert "CANARY" not in str(caught.value)


def test_an_unknown_name_is_named() -> None:
    with pytest.raises(StoreUnavailable, match=r"the name in nobody\.invalid:80 is unknown"):
        with_store("http://nobody.invalid?deadline=200ms", counting)


def test_a_missing_token_is_asked_for() -> None:
    with scripted(always(b"", "401 Unauthorized")) as server:
        with pytest.raises(BadUrl, match="needs a token: use https://TOKEN@HOST, or set HOLDFAST_TOKEN"):
            with_store(f"http://127.0.0.1:{server.port}", counting)
        assert "authorization" not in server.requests[0].headers


@pytest.mark.parametrize(
    "error", [StaleEpoch("owned by b in epoch 4"), StoreFull("the disk is full"), StoreError("no")], ids=str
)
def test_an_error_of_the_store_is_the_same_error_here(error: HoldfastError) -> None:
    refusal = problems.problem_of(error)
    with scripted(always(problem(refusal), f"{refusal.status} No", problem_type())) as server:
        with pytest.raises(type(error)) as caught:
            with_store(url_of(server), counting)
        assert str(caught.value) == str(error)
        assert len(server.requests) == 1


def test_a_server_that_repeats_the_token_is_not_repeated() -> None:
    refusal = problem(problems.INVALID.problem("hf_id_CANARY is\r\n\x1b[31m not a token"))
    with scripted(always(refusal, "422 No", problem_type())) as server, pytest.raises(StoreError) as caught:
        with_store(url_of(server), counting)
    assert str(caught.value).endswith("*** is ?[31m not a token")


def problem(problem: Problem) -> bytes:
    return write_problem(problem)


def problem_type() -> str:
    return f"content-type: {problems.MEDIA_TYPE}"


def test_a_closed_store_says_so() -> None:
    async def run() -> None:
        store = open_store("http://127.0.0.1:1")
        await store.close()
        with pytest.raises(StoreUnavailable, match="closed"):
            await store.counts()

    asyncio.run(run())
