"""URLs of stores: their options, their hosts, TLS, and how they are shown without their password."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl

from holdfast.core.durations import duration_ms
from holdfast.errors import BadDuration

if TYPE_CHECKING:
    import ssl


def hidden(url: str) -> str:
    """The URL without its password, even if the password has characters that should have been escaped."""
    scheme, slashes, rest = url.partition("://")
    if not slashes:  # no URL, but what is in front of an @ may be a password all the same
        scheme, _, rest = url.partition(":")
        return f"{scheme}:***@{rest.rpartition('@')[2]}" if "@" in rest else url
    login, at, tail = rest.rpartition("@")
    if not at:
        return url
    name, colon, _ = login.partition(":")
    # A server knows no users: whatever stands in front of it may be a token.
    named = colon and scheme not in {"http", "https"}
    return f"{scheme}://{name}:***@{tail}" if named else f"{scheme}://***@{tail}"


# -- urloptions ----------------------------------------------------------------------------------------------


#: The options of a kind of URL: the field that each one sets, and how its text is read.
Readers = Mapping[str, tuple[str, Callable[[str, str], Any]]]


def read_options(query: str, readers: Readers) -> dict[str, Any]:
    """The fields that the options behind the question mark set; each of them once, and none that is not known."""
    found: dict[str, Any] = {}
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in readers:
            raise ValueError(f"unknown option {name!r}; there are {', '.join(readers)}")
        field_name, read = readers[name]
        if field_name in found:
            raise ValueError(f"option {name!r} is given twice")
        found[field_name] = read(name, text)
    return found


def known_host(text: str) -> str:
    """A name or an address that can be asked for: what the encoding of names refuses would not even be looked up."""
    try:
        text.encode("idna")
    except UnicodeError:
        # Not shown: it may be a part of a password with an unescaped slash.
        raise ValueError("that host cannot be: every part of a name has 1 to 63 characters") from None
    return text


def file(name: str, text: str) -> str:
    """The path of a file that is there."""
    if not Path(text).is_file():
        raise ValueError(f"{name}={text}: there is no such file")
    return text


def durability(name: str, text: str) -> str:
    """A durability level."""
    if text not in {"local", "replicated", "strict"}:
        raise ValueError(f"{name}={text}: write local, replicated or strict")
    return text


def deadline(name: str, text: str) -> int:
    """A duration in milliseconds."""
    try:
        milliseconds = duration_ms(text)
    except BadDuration:
        milliseconds = 0
    if not 100 <= milliseconds <= 600_000:
        raise ValueError(f"{name}={text}: write a duration from 100ms to 10m, such as 5s")
    return milliseconds


def number(lowest: int, highest: int) -> Callable[[str, str], int]:
    """Reads a whole number within these bounds."""

    def read(name: str, text: str) -> int:
        if not (text.isascii() and text.isdecimal() and lowest <= int(text) <= highest):
            raise ValueError(f"{name}={text}: write a whole number from {lowest} to {highest}")
        return int(text)

    return read


# -- tls -----------------------------------------------------------------------------------------------------


_SECONDS: Final = 1.0
#: The OpenSSL codes of certificate errors that another authority would not fix, and what to do about them.
_RENEW: Final = "renew it on the server"
_OTHER_HOST: Final = "write the host for which it was made in the URL"
_ADVICE: Final = {9: _RENEW, 10: _RENEW, 62: _OTHER_HOST, 64: _OTHER_HOST}


async def speaks_tls(host: str, port: int) -> bool:
    """Whether what listens there begins to speak TLS."""
    import asyncio
    import ssl

    anybody = ssl.create_default_context()
    # Nothing is said on this connection, so it does not matter with whom.
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=anybody)
    except (OSError, TimeoutError):
        return False
    writer.transport.abort()
    return True


def untrusted(error: ssl.SSLCertVerificationError, option: str) -> str:
    """What is wrong with a certificate, and what to do: an expired one needs no other authority."""
    advice = _ADVICE.get(error.verify_code, f"name its authority with {option}")
    return f"the server's certificate is not trusted ({error.verify_message}); {advice}"
