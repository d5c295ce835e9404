"""What the URL of a server may say, and what it is told when it says something else."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.errors import BadUrl
from holdfast.stores.open import open_store
from holdfast.stores.remote.urls import parse_remote_url


def test_plain_url_with_defaults() -> None:
    settings = parse_remote_url("https://holdfast.example")
    assert (settings.host, settings.port, settings.tls, settings.prefix) == ("holdfast.example", 443, True, "")
    assert (settings.token, settings.deadline_ms, settings.ca) == (None, 10_000, "")
    assert settings.place == "holdfast.example"


def test_everything_at_once(tmp_path: Path) -> None:
    authority = tmp_path / "ca.crt"
    authority.write_text("")
    settings = parse_remote_url(f"https://hf_ab_c%2Bd@[::1]:8443/tasks/?deadline=1m30s&ca={authority}")
    assert (settings.host, settings.port, settings.place, settings.prefix) == ("::1", 8443, "[::1]:8443", "/tasks")
    assert (settings.token, settings.deadline_ms, settings.ca) == ("hf_ab_c+d", 90_000, str(authority))


def test_the_token_comes_from_the_environment_if_the_url_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "hf_of_environment")
    assert parse_remote_url("http://localhost:8080").token == "hf_of_environment"
    assert parse_remote_url("http://hf_of_url@localhost:8080").token == "hf_of_url"


def test_the_token_is_never_shown() -> None:
    settings = parse_remote_url("http://hf_id_CANARY@localhost:8080/?deadline=5s")
    assert settings.url == "http://***@localhost:8080/?deadline=5s"
    assert "CANARY" not in repr(settings)
    assert "CANARY" not in open_store("http://hf_id_CANARY@localhost:8080").url


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("http://localhost?deadlin=5s", "unknown option 'deadlin'; there are deadline, ca"),
        ("http://localhost?deadline=1h", "deadline=1h: write a duration from 100ms to 10m"),
        ("https://localhost?ca=/x.crt", "ca=/x.crt: there is no such file"),
        (f"http://localhost?ca={__file__}", "option 'ca' needs TLS; write https://"),
        ("http://localhost:0", "a port must be a number from 1 to 65535"),
        ("http://localhost:70000", "a port must be a number from 1 to 65535"),
        ("http://localhost:port", "a host, or a host and a port, is missing"),
        ("http://", "a host, or a host and a port, is missing"),
        ("http://hf_CANARY@", "a host, or a host and a port, is missing"),
        ("http://server..example", "that host cannot be"),
        (f"http://{'a' * 64}.example", "every part of a name has 1 to 63 characters"),
        ("http://joe:CANARY@localhost", "no users with passwords: write the token alone"),
        ("http://CANARY%0d%0aevil:%20yes@localhost", "no users with passwords"),
        ("http://CANARY%0d%0aevil@localhost", "the token in the URL is none"),
        ("http://CAN/ARY@localhost", "escape / ? # @ in a token"),
        ("http://localhost/a b", "escape / ? # @ in a token"),
        ("http:localhost", "is not a store URL: two slashes are missing after http:"),
    ],
)
def test_a_mistake_is_named_in_one_line(url: str, says: str) -> None:
    with pytest.raises(BadUrl) as caught:
        open_store(url)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "CANARY" not in str(caught.value)


def test_a_bad_token_in_the_environment_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_TOKEN", "CANARY\r\nx")
    with pytest.raises(BadUrl, match="the token in HOLDFAST_TOKEN is none") as caught:
        parse_remote_url("http://localhost")
    assert "CANARY" not in str(caught.value)
