"""What may stand behind `--host` and `--allow-host` of `holdfast server`."""

from __future__ import annotations

import click
import pytest

from holdfast.cli.server import host_name
from tests.support import run_holdfast


@pytest.mark.parametrize(
    ("given", "host"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("localhost", "localhost"),
        ("server.example.", "server.example."),
        ("::1", "::1"),
        ("[::1]", "::1"),
    ],
)
def test_names_and_addresses_are_taken(given: str, host: str) -> None:
    assert host_name(given) == host


@pytest.mark.parametrize(
    "given", ["", "a b", "localhost:8080", "http://localhost", "[::1]:8080", "server..example", "a" * 64, "[x]"]
)
def test_what_cannot_be_one_is_refused(given: str) -> None:
    with pytest.raises(click.BadParameter, match="is no host; write a name or an address"):
        host_name(given)


def test_the_refusal_is_one_line_and_a_wrong_call() -> None:
    refused = run_holdfast("server", "--allow-host", "http://server.example/")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1
    assert "--allow-host" in refused.stderr
