"""Requests that two readers could read in two ways: each is refused, or read in the one way that the standard says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.server.security.gate import Gate, open_gate
from tests.server.security.raw import answer_of, connected, rest
from tests.support import eventually

JSON = b'{"type":"add"}'
LENGTH = b"Content-Length: %d\r\n" % len(JSON)
CHUNKED = b"Transfer-Encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(JSON), JSON)


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gate]:
    with open_gate(tmp_path_factory.mktemp("gate")) as gate:
        yield gate


class Sender:
    """Sends an enqueue with odd parts, and behind it, in one go, a request by which one sees what was read as what."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._client = gate.client("admin")
        self.common = (
            f"Host: localhost\r\nAuthorization: Bearer {gate.token('admin')}\r\nContent-Type: application/json\r\n"
        ).encode()
        self.next = b"GET /v1/next HTTP/1.1\r\n%bConnection: close\r\n\r\n" % self.common

    def send(self, headers: bytes, body: bytes = b"", line: bytes = b"POST /v1/queues/q/tasks HTTP/1.1") -> list[int]:
        """The statuses of all answers."""
        with connected(self._gate) as connection:
            connection.sendall(b"%b\r\n%b%b\r\n%b%b" % (line, self.common, headers, body, self.next))
            return [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", rest(connection))]

    def recorded(self) -> int:
        """How many tasks there are."""
        return len(self._client.get("/v1/tasks?limit=1000")["tasks"])


@pytest.fixture(scope="module")
def sender(gate: Gate) -> Sender:
    return Sender(gate)


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        pytest.param(LENGTH + CHUNKED, CHUNKS, id="length and chunks"),
        pytest.param(CHUNKED + LENGTH, CHUNKS, id="chunks and length"),
        pytest.param(b"Content-Length: 0\r\n" + CHUNKED, CHUNKS, id="no length and chunks"),
        pytest.param(LENGTH + b"Content-Length: 0\r\n", JSON, id="two lengths"),
        pytest.param(b"Content-Length: 14, 0\r\n", JSON, id="two lengths in a list"),
        *(
            pytest.param(b"Content-Length: %b\r\n" % length, JSON, id=f"length {length!r}")
            for length in (b"+14", b"-14", b"0xe", b"1_4", b"1 4", b"", b"\xd9\xa1")
        ),
        pytest.param(b"Content-Length : 14\r\n", JSON, id="a space before the colon"),
        pytest.param(b"Transfer-Encoding : chunked\r\n", CHUNKS, id="a space before the colon of chunks"),
        *(
            pytest.param(b"Transfer-Encoding: %b\r\n" % coding, CHUNKS, id=f"coding {coding!r}")
            for coding in (b"xchunked", b"identity", b"chunked, identity", b"\x0bchunked")
        ),
        pytest.param(CHUNKED * 2, CHUNKS, id="chunks twice"),
        *(
            pytest.param(CHUNKED, b"%b\r\n%b\r\n0\r\n\r\n" % (size, JSON), id=f"chunk size {size!r}")
            for size in (b"0xe", b"+e", b"-e", b"d", b"e;a\nb", b'e;a="\r\n"')
        ),
        pytest.param(CHUNKED, CHUNKS.replace(b"\r\n", b"\n"), id="chunks that end in LF"),
        pytest.param(LENGTH + b"X-A: b\rX-B: c\r\n", JSON, id="a lone CR"),
        pytest.param(LENGTH + b"X-A: b\0c\r\n", JSON, id="NUL in a value"),
        pytest.param(LENGTH + b"X\0A: b\r\n", JSON, id="NUL in a name"),
        pytest.param(LENGTH + b"X A: b\r\n", JSON, id="a space in a name"),
        pytest.param(LENGTH + b"no colon\r\n", JSON, id="no colon"),
        pytest.param(LENGTH + b": nameless\r\n", JSON, id="no name"),
    ],
)
def test_what_could_be_read_in_two_ways_is_not_read(sender: Sender, headers: bytes, body: bytes) -> None:
    before = sender.recorded()
    assert sender.send(headers, body) == [400]  # and nothing behind it is read as a request
    assert sender.recorded() == before


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        pytest.param(LENGTH, JSON, id="a length"),
        pytest.param(CHUNKED, CHUNKS, id="chunks"),
        pytest.param(b"TRANSFER-ENCODING:\tChUnKeD\r\n", CHUNKS, id="chunks in other letters"),
        pytest.param(CHUNKED, CHUNKS.replace(b"e\r\n", b"e;name=value\r\n", 1), id="an extension of a chunk"),
        pytest.param(CHUNKED, CHUNKS[:-2] + b"X-Trailer: 1\r\n\r\n", id="a trailer"),
        pytest.param(LENGTH + b"X-A: b\xffc\r\n", JSON, id="a byte beyond ASCII"),
        pytest.param(LENGTH + b"Connection: Upgrade\r\nUpgrade: h2c\r\n", JSON, id="an offer of HTTP/2"),
        pytest.param(CHUNKED + b"Connection: Upgrade\r\nUpgrade: websocket\r\n", CHUNKS, id="an offer with chunks"),
    ],
)
def test_what_can_be_read_in_one_way_is(sender: Sender, headers: bytes, body: bytes) -> None:
    before = sender.recorded()
    assert sender.send(headers, body) == [201, 404]
    assert sender.recorded() == before + 1


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        pytest.param(LENGTH + b"X-A: b\r\n c\r\n", JSON, id="a folded line"),
        pytest.param(b"Transfer-Encoding:\r\n chunked\r\n", CHUNKS, id="a folded coding"),
        pytest.param(LENGTH + b"X-A: b\nX-B: c\r\n", JSON, id="a lone LF"),
        pytest.param(LENGTH * 2, JSON, id="the same length twice"),
        pytest.param(LENGTH + b"X-A: b\x01c\r\n", JSON, id="a control character"),
    ],
)
def test_where_the_standard_leaves_a_choice_nothing_is_smuggled(sender: Sender, headers: bytes, body: bytes) -> None:
    before = sender.recorded()
    statuses = sender.send(headers, body)
    assert statuses in ([400], [201, 404])
    assert sender.recorded() - before == statuses.count(201)


def test_trailers_are_no_headers(gate: Gate) -> None:
    head = b"POST /v1/queues/q/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n" + CHUNKED
    late = f"Authorization: Bearer {gate.token('admin')}\r\n".encode()
    with connected(gate) as connection:
        connection.sendall(head + b"\r\n" + CHUNKS[:-2] + late + b"\r\n")
        assert answer_of(connection).startswith(b"HTTP/1.1 401 ")


def test_requests_sent_in_one_go_are_answered_in_order(gate: Gate) -> None:
    sender = Sender(gate)
    paths = [f"/v1/nothing/{number}" for number in range(20)]
    with connected(gate) as connection:
        connection.sendall(b"".join(b"GET %b HTTP/1.1\r\nHost: a.localhost\r\n\r\n" % path.encode() for path in paths))
        connection.sendall(sender.next)
        statuses = re.findall(rb"HTTP/1.1 (\d+) ", rest(connection))
    assert statuses == [b"421"] * 20 + [b"404"]


def test_offers_of_another_protocol_in_one_go_are_requests_like_others(gate: Gate) -> None:
    offer = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    with connected(gate) as connection:
        connection.sendall(offer * 2_000 + b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert rest(connection).count(b"HTTP/1.1 200 OK") == 2_001


def test_nonsense_after_a_request_is_refused_after_its_answer(gate: Gate) -> None:
    sender = Sender(gate)
    before = sender.recorded()
    sender.next = b"this is no request\r\n\r\n"
    assert sender.send(LENGTH, JSON) == [201, 400]
    assert sender.recorded() == before + 1


def test_a_head_without_end_behind_a_poll_is_not_read(gate: Gate) -> None:
    """While a request is being answered, nothing more is read of its connection."""
    body = json.dumps({"worker_id": "w", "queues": ["empty"], "wait": "2s"}).encode()
    head = b"POST /v1/reserve HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (Sender(gate).common, len(body))
    with connected(gate) as connection:
        connection.sendall(head + body)
        eventually(lambda: gate.server.service.waiters.waiting == 1, what="the poll waits")
        connection.settimeout(0.5)
        with pytest.raises(TimeoutError):
            connection.sendall(b"X-Large: " + b"x" * 100_000_000)
        connection.settimeout(10)
        assert rest(connection).count(b"HTTP/1.1 200 OK") == 1


def test_trailers_without_end_are_cut(gate: Gate) -> None:
    sender = Sender(gate)
    with connected(gate) as connection:
        connection.sendall(b"POST /v1/queues/q/tasks HTTP/1.1\r\n%b%b\r\n1\r\n{\r\n0\r\n" % (sender.common, CHUNKED))
        connection.settimeout(0.05)
        answer = b""
        for _ in range(20):
            try:
                connection.sendall(b"X-Large: " + b"x" * 8_000 + b"\r\n")
                answer = connection.recv(65_536)
            except TimeoutError:
                continue
            break
        assert answer[:12] in {b"HTTP/1.1 431", b"HTTP/1.1 400"}


def test_a_body_is_asked_for_only_if_it_will_be_read(gate: Gate) -> None:
    sender = Sender(gate)
    head = b"POST /v1/queues/q/tasks HTTP/1.1\r\n%b" + LENGTH + b"Expect: 100-continue\r\n\r\n"
    with connected(gate) as connection:
        connection.sendall(head % sender.common)
        assert connection.recv(65_536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(JSON)
        assert answer_of(connection).startswith(b"HTTP/1.1 201 ")
    with connected(gate) as connection:
        connection.sendall(head % b"Host: localhost\r\n")
        assert answer_of(connection).startswith(b"HTTP/1.1 401 ")
