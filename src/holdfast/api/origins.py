"""Where a request comes from: browsers can be made to send requests that their users know nothing of.

A page of another site cannot read our answers, since there is no CORS; what it could still do is send something that
changes a state, or, through a name that it makes point to this machine, become "the same site". Both are seen in
headers that a page cannot forge: Origin, Sec-Fetch-Site and Host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from ipaddress import ip_address
from typing import Any, Final

from holdfast.wire import problems
from holdfast.wire.problems import Problem

#: Methods that change nothing. It is these that are listed: one that is forgotten is checked.
_SAFE: Final = frozenset({"GET", "HEAD"})
_OWN_SITE: Final = frozenset({b"same-origin", b"none"})
_DEFAULT_PORTS: Final = (":80", ":443")


def objection(scope: Mapping[str, Any], names: Collection[str]) -> Problem | None:
    """Why a request is not answered, if it is not; `names` are those that the gateway goes by, none for any."""
    hosts = _all(scope, b"host")
    if len(hosts) > 1 or (hosts and not _is_ours(hosts[0], scope, names)):
        return problems.WRONG_HOST.problem("name it with --allow-host if that is how clients call this gateway")
    if scope["method"] in _SAFE:
        return None
    if any(site.lower() not in _OWN_SITE for site in _all(scope, b"sec-fetch-site")):
        return problems.FOREIGN_ORIGIN.problem("a page of another site has sent this")
    if any(not hosts or _authority(origin) != _plain(_text(hosts[0])) for origin in _all(scope, b"origin")):
        return problems.FOREIGN_ORIGIN.problem("the Origin is not that of this gateway")
    return None


def is_loopback(host: str) -> bool:
    """Whether only processes of this machine can reach the address, or an address of that name."""
    try:
        return ip_address(host.strip("[]").partition("%")[0]).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"


def _is_ours(host: bytes, scope: Mapping[str, Any], names: Collection[str]) -> bool:
    name = _name(_text(host))
    if name in names or is_loopback(name):
        return True
    if names:
        return False
    # Nobody else calls a socket of this machine by a foreign name but a browser that was lied to about an address.
    here = scope.get("server")
    return here is None or here[1] is None or not is_loopback(here[0])


def _all(scope: Mapping[str, Any], name: bytes) -> list[bytes]:
    return [value for known, value in scope["headers"] if known == name]


def _text(value: bytes) -> str:
    return value.decode("latin-1").strip().lower()


def _name(host: str) -> str:
    """The name in `name:port` or `[address]:port`."""
    if host.startswith("["):
        return host.partition("]")[0] + "]"
    return host.partition(":")[0].rstrip(".")


def _authority(origin: bytes) -> str:
    """What stands for host and port in an origin; nothing of ours for `null`."""
    scheme, separator, authority = _text(origin).partition("://")
    return _plain(authority) if separator and scheme in {"http", "https"} else "null"


def _plain(authority: str) -> str:
    """Without the port that goes without saying; a proxy may have taken the TLS off, so that either may."""
    for port in _DEFAULT_PORTS:
        authority = authority.removesuffix(port)
    return authority
