"""TLS: the server's certificate is checked if the URL says so, and what is wrong with it is one line."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.errors import BadUrl, StoreUnavailable
from tests.postgres.link.helpers import make_schema, opened
from tests.servers.callers import one_line
from tests.servers.certificates import Certificates, make_certificates
from tests.servers.postgres import PostgresServer
from tests.servers.processes import server_user
from tests.support import eventually


@dataclass(frozen=True)
class Guarded:
    """A server that wants TLS, and the authority of its certificate."""

    server: PostgresServer
    authority: Path


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    server = PostgresServer()
    certificates = make_certificates(server.directory)
    if user := server_user():
        shutil.chown(certificates.key, user)
    certificates.key.chmod(0o600)
    files = {"ssl_cert_file": str(certificates.certificate), "ssl_key_file": str(certificates.key)}
    server.configure(ssl=True, **files)
    with server:
        make_schema(server.url())
        rules = server.directory / "data" / "pg_hba.conf"
        rules.write_text(rules.read_text().replace("host all", "hostssl all"))
        server.query("SELECT pg_reload_conf()")
        yield Guarded(server, certificates.authority)


def refusal(url: str) -> str:
    async def scenario() -> str:
        async with opened(url, deadline="5s") as database:
            with pytest.raises(BadUrl) as caught:
                await database.call("levels")
            return one_line(caught.value)

    return asyncio.run(scenario())


def test_checked_certificate(guarded: Guarded) -> None:
    async def scenario() -> None:
        url = guarded.server.url(sslmode="verify-full", sslrootcert=str(guarded.authority))
        async with opened(url) as database:
            await database.call("record", "a", b"", safe=True)
            database.notify(["default"])
            assert await database.wait(["default"], 20_000) is True

    asyncio.run(scenario())


def test_certificate_of_nobody_we_know(guarded: Guarded, tmp_path: Path) -> None:
    other = make_certificates(tmp_path).authority
    url = guarded.server.url(sslmode="verify-full", sslrootcert=str(other))
    assert "the server's certificate is not trusted; name its authority with ?sslrootcert=FILE" in refusal(url)


def test_certificate_that_has_expired_is_an_outage_after_the_first_answer(guarded: Guarded, tmp_path: Path) -> None:
    expired, authorities = make_certificates(tmp_path, expired=True), tmp_path / "both.crt"
    authorities.write_text(guarded.authority.read_text() + expired.authority.read_text())
    url = guarded.server.url(sslmode="verify-full", sslrootcert=str(authorities))

    async def scenario() -> None:
        async with opened(url, deadline="2s") as database:
            await database.call("levels")
            with _certificate(guarded.server, expired):
                guarded.server.terminate_backends()
                with pytest.raises(StoreUnavailable, match="or renew it if it has expired"):
                    await database.call("levels")
                assert "or renew it if it has expired" in await asyncio.to_thread(refusal, url)
            await database.call("levels")

    asyncio.run(scenario())


@contextmanager
def _certificate(server: PostgresServer, other: Certificates) -> Iterator[None]:
    """Has the server show another certificate to new connections."""
    data = server.directory
    files = ("server.crt", "server.key")
    before = {name: (data / name).read_bytes() for name in files}
    shown = _shown(server)
    try:
        for name, path in zip(files, (other.certificate, other.key), strict=True):
            (data / name).write_bytes(path.read_bytes())
        server.query("SELECT pg_reload_conf()")
        eventually(lambda: _shown(server) != shown, 20)
        yield
    finally:
        for name, content in before.items():
            (data / name).write_bytes(content)
        server.query("SELECT pg_reload_conf()")


def _shown(server: PostgresServer) -> str:
    """The certificate that the server shows to new connections."""
    command = ["openssl", "s_client", "-starttls", "postgres", "-connect", f"127.0.0.1:{server.port}"]
    text = subprocess.run(command, input="", capture_output=True, text=True, timeout=30, check=False).stdout
    return text.partition("-----BEGIN CERTIFICATE-----")[2].partition("-----END")[0]


def test_authority_is_missing(guarded: Guarded, tmp_path: Path) -> None:
    url = guarded.server.url(sslmode="verify-full", sslrootcert=str(tmp_path / "missing.crt"))
    assert "name it with ?sslrootcert=FILE" in refusal(url)


def test_server_wants_tls(guarded: Guarded) -> None:
    assert "look at its pg_hba.conf" in refusal(guarded.server.url(sslmode="disable"))
