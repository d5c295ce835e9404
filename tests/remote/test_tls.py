"""Servers with TLS: trusted, not trusted, and not at all."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from holdfast.errors import BadUrl
from holdfast.stores.contract import Store
from tests.remote.calling import counting, with_store
from tests.remote.scripted import always, scripted
from tests.servers.certificates import make_certificates


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ssl.SSLContext]:
    """The authority, and a server's side of TLS."""
    made = make_certificates(tmp_path_factory.mktemp("certificates"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(made.certificate, made.key)
    return made.authority, context


def test_a_server_with_a_known_authority_is_trusted(certificates: tuple[Path, ssl.SSLContext]) -> None:
    authority, tls = certificates

    async def use(store: Store) -> None:
        assert await store.counts() == []
        assert await store.counts() == []

    with scripted(always(b"[]"), tls) as server:
        with_store(f"https://hf_x@localhost:{server.port}?ca={authority}", use)
        assert [asked.connection for asked in server.requests] == [0, 0]


def test_a_server_with_an_unknown_authority_is_refused(certificates: tuple[Path, ssl.SSLContext]) -> None:
    _, tls = certificates
    with scripted(always(b"[]"), tls) as server:
        with pytest.raises(BadUrl, match=r"certificate is not trusted .*\?ca=FILE"):
            with_store(f"https://hf_x@localhost:{server.port}", counting)
        assert server.requests == []


def test_a_server_under_another_name_is_refused(certificates: tuple[Path, ssl.SSLContext]) -> None:
    authority, tls = certificates
    with scripted(always(b"[]"), tls) as server:
        with pytest.raises(BadUrl, match="certificate is not trusted"):
            with_store(f"https://hf_x@127.1:{server.port}?ca={authority}", counting)
        assert server.requests == []


def test_tls_to_a_server_without_it_is_named() -> None:
    refusing = lambda peer: peer.answer(b"", "400 Bad Request")  # noqa: E731
    with scripted(refusing) as server, pytest.raises(BadUrl, match="does not speak TLS; write http://"):
        with_store(f"https://localhost:{server.port}?deadline=2s", counting)


def test_a_server_with_tls_that_is_called_without_is_named(certificates: tuple[Path, ssl.SSLContext]) -> None:
    _, tls = certificates
    with scripted(always(b"[]"), tls) as server, pytest.raises(BadUrl, match="speaks TLS; write https://"):
        with_store(f"http://localhost:{server.port}?deadline=2s", counting)
