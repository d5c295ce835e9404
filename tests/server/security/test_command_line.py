"""`holdfast token`, and the first start of `holdfast server`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.remote.holdfast_server import holdfast_server
from tests.server.setting import Client
from tests.support import run_holdfast

TOKEN = re.compile(r"hf_[0-9a-f]{12}_[0-9a-f]{64}")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/tasks.db"


def test_tokens_are_made_listed_and_revoked(url: str) -> None:
    made = run_holdfast(
        *("token", "create", "--scope", "work:images", "--scope", "read", "--rate", "100/s", "--expires", "30d"),
        *("--note", "the box upstairs"),
        url=url,
    )
    assert made.returncode == 0
    token = made.stdout.strip()
    assert TOKEN.fullmatch(token)
    assert "only time" in made.stderr
    listed = run_holdfast("token", "ls", "--json", url=url)
    [record] = json.loads(listed.stdout)
    assert record["scopes"] == ["work:images", "read"]
    assert (record["rate"], record["note"], record["used_at_ms"]) == ("100/s", "the box upstairs", None)
    assert record["expires_at_ms"] - record["created_at_ms"] == 30 * 86_400_000
    assert token.split("_")[2] not in listed.stdout
    assert "digest" not in listed.stdout
    assert "the box upstairs" in run_holdfast("token", "ls", url=url).stdout
    assert run_holdfast("token", "revoke", record["token_id"], url=url).returncode == 0
    again = run_holdfast("token", "revoke", token, url=url)
    assert (again.returncode, token.split("_")[2] in again.stderr) == (1, False)
    assert json.loads(run_holdfast("token", "ls", "--json", url=url).stdout) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--scope", "root"), "write enqueue:QUEUE"),
        (("--scope", "work"), "work:* for all queues"),
        (("--scope", "read", "--rate", "often"), "write 100/s"),
        (("--scope", "read", "--expires", "0"), "of no use"),
        (("--scope", "read", "--note", "x" * 300), "200 printable"),
        ((), "--scope"),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(options: tuple[str, ...], words: str, url: str) -> None:
    done = run_holdfast("token", "create", *options, url=url)
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1


def test_another_address_is_refused_without_tokens(url: str) -> None:
    done = run_holdfast("server", "--host", "0.0.0.0", "--port", "0", url=url)
    assert done.returncode == 2
    assert "holdfast token create --scope admin" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_first_start_prints_one_token_and_the_second_none(tmp_path: Path, url: str) -> None:
    with holdfast_server(tmp_path, url) as server:
        [token] = TOKEN.findall(server.log())
        client = Client(server.port, token)
        assert client.get("/v1/whoami")["scopes"] == ["admin"]
        client.close()
        stranger = Client(server.port)
        assert stranger.send("GET", "/v1/queues").status == 401
        stranger.close()
        server.kill()
        server.start()
        assert TOKEN.findall(server.log()) == [token]
