"""From the URL of a server to settings: its address, and the token to send."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from holdfast.errors import BadUrl
from holdfast.stores.urls import Readers, deadline, file, hidden, known_host, read_options

SCHEMES: Final = {"http": 80, "https": 443}
#: Where the token is looked for when the URL has none.
TOKEN_VARIABLE: Final = "HOLDFAST_TOKEN"  # noqa: S105  (the name of it)
_EXAMPLE: Final = "https://TOKEN@holdfast.example/"
_PLACE = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?", re.ASCII)
_PATH = re.compile(r"(/[A-Za-z0-9._~%!$&'()*+,;=:-]+)*/?", re.ASCII)
#: What may follow "Bearer" (RFC 6750): nothing that ends a line.
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,512}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteSettings:
    """What the URL of a server says."""

    #: Fit for messages: the token is hidden.
    url: str
    host: str
    port: int
    tls: bool
    #: What the paths of the API begin with, if the server is part of another application.
    prefix: str = ""
    token: str | None = field(default=None, repr=False)
    #: How long a call retries before it gives up.
    deadline_ms: int = 10_000
    #: The authorities to trust; empty for those of the system.
    ca: str = ""

    @property
    def place(self) -> str:
        """Host and port, as the Host header has them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == SCHEMES["https" if self.tls else "http"] else f"{host}:{self.port}"


def parse_remote_url(url: str) -> RemoteSettings:
    """The settings in this URL; `BadUrl` says in one line what to fix, without the token."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise BadUrl(f"{hidden(url)!r} is not the URL of a server: write {_EXAMPLE}")
    place, _, query = rest.partition("?")
    netloc, slash, path = place.partition("/")
    login, _, netloc = netloc.rpartition("@")
    try:
        host, port = _place(netloc, SCHEMES[scheme])
        return RemoteSettings(
            url=hidden(url),
            host=host,
            port=port,
            tls=scheme == "https",
            prefix=_prefix(slash + path),
            token=_token(login),
            **_options(query, scheme),
        )
    except ValueError as error:
        raise BadUrl(f"{hidden(url)!r}: {error}") from None


def _place(netloc: str, default_port: int) -> tuple[str, int]:
    found = _PLACE.fullmatch(netloc)
    if not found:
        raise ValueError(f"a host, or a host and a port, is missing; write {_EXAMPLE}")
    host, port = known_host(found[1].strip("[]")), int(found[2] or default_port)
    if not 1 <= port <= 65_535:
        raise ValueError("a port must be a number from 1 to 65535")
    return host, port


def _prefix(path: str) -> str:
    if not _PATH.fullmatch(path):
        raise ValueError("escape / ? # @ in a token as %2F %3F %23 %40, and other characters in a path likewise")
    return path.rstrip("/")


def _token(login: str) -> str | None:
    text, where = (unquote(login), "the URL") if login else (os.environ.get(TOKEN_VARIABLE, ""), TOKEN_VARIABLE)
    if not text:
        return None
    if ":" in text:
        raise ValueError(f"a server has no users with passwords: write the token alone, as in {_EXAMPLE}")
    if not _TOKEN.fullmatch(text):
        raise ValueError(f"the token in {where} is none; copy it as `holdfast token create` has printed it")
    return text


def _options(query: str, scheme: str) -> dict[str, Any]:
    found = read_options(query, _OPTIONS)
    if "ca" in found and scheme != "https":
        raise ValueError("option 'ca' needs TLS; write https:// instead of http://")
    return found


_OPTIONS: Final[Readers] = {"deadline": ("deadline_ms", deadline), "ca": ("ca", file)}
