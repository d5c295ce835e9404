"""What goes wrong on the way to a server, in words that say what to do; the token is in none of them."""

from __future__ import annotations

import socket
import ssl
from typing import Final

from holdfast.core.durations import format_ms
from holdfast.errors import BadUrl, HoldfastError, StoreError, StoreUnavailable
from holdfast.stores.remote import problems
from holdfast.stores.remote.http import Answer, BadAnswer, EndedEarly
from holdfast.stores.remote.urls import TOKEN_VARIABLE, RemoteSettings
from holdfast.stores.urls import hidden, speaks_tls, untrusted

#: What a try can end with, other than an answer.
TROUBLES: Final = (OSError, TimeoutError, EndedEarly, BadAnswer)
_LONGEST_WORDS: Final = 500


class Failures:
    """The errors of one link in our words."""

    def __init__(self, settings: RemoteSettings) -> None:
        self._settings = settings
        self._url = settings.url
        self._looked = False

    async def hopeless(self, error: BaseException) -> HoldfastError | None:
        """The error to raise at once, since it is the URL that is wrong."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return BadUrl(f"{self._url}: {untrusted(error, '?ca=FILE')}")
        if isinstance(error, ssl.SSLError) and error.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST"}:
            return BadUrl(f"{self._url}: what listens there does not speak TLS; write http:// instead of https://")
        if isinstance(error, BadAnswer):
            return self._no_server(error)
        if isinstance(error, EndedEarly | ConnectionResetError) and await self._wants_tls():
            return BadUrl(f"{self._url}: what listens there speaks TLS; write https:// instead of http://")
        return None

    def exhausted(self, error: BaseException | None, tried_ms: int) -> HoldfastError:
        """The error to raise at the deadline, after `tried_ms`."""
        if isinstance(error, StoreUnavailable):
            error.tried_ms = tried_ms
            return error
        if isinstance(error, HoldfastError):
            return error if error.retryable else StoreUnavailable(str(error), tried_ms=tried_ms)
        text = f"{self._url}: {self._silence(error)} (tried for {format_ms(tried_ms)})"
        return StoreUnavailable(text, tried_ms=tried_ms)

    def refusal(self, answer: Answer) -> HoldfastError:
        """The error behind an answer that is none."""
        if 300 <= answer.status < 400:
            to = self._words(hidden(answer.headers.get("location", "another address")))
            return BadUrl(f"{self._url}: the server redirects to {to}, which is not followed: use that URL")
        error = problems.error_of(answer.status, answer.body)
        if answer.status == 401:
            return self._no_token()
        if is_problem(answer):
            return type(error)(self._words(error))
        return self._no_server() if answer.status in {404, 405} else type(error)(f"{self._url}: {self._words(error)}")

    def misunderstood(self, method: str) -> HoldfastError:
        """The error for an answer that says nothing which we know."""
        return StoreError(
            f"{self._url}: the answer to {method} is not one that this version knows; "
            "use the same version of Holdfast on both sides"
        )

    async def _wants_tls(self) -> bool:
        """Found out once: who is cut off again and again has another reason."""
        if self._settings.tls or self._looked:
            return False
        self._looked = True
        return await speaks_tls(self._settings.host, self._settings.port)

    def _no_token(self) -> HoldfastError:
        if self._settings.token is None:
            return BadUrl(f"{self._url}: the server needs a token: use https://TOKEN@HOST, or set {TOKEN_VARIABLE}")
        return BadUrl(f"{self._url}: the server refused this token: make one with `holdfast token create`")

    def _no_server(self, error: BadAnswer | None = None) -> HoldfastError:
        why = f" ({error})" if error is not None else ""
        return BadUrl(f"{self._url}: what answers there is not a Holdfast server{why}: fix the host, port and path")

    def _silence(self, error: BaseException | None) -> str:
        """What to say of a server that did not answer."""
        place = f"{self._settings.host}:{self._settings.port}"
        if isinstance(error, socket.gaierror):
            return f"the name in {place} is unknown: fix it in the URL"
        if isinstance(error, ConnectionRefusedError) or "Connect call failed" in str(error):
            return f"connection refused at {place}: start the server or fix the host and port in the URL"
        if isinstance(error, TimeoutError):
            return f"no answer from {place}"
        if isinstance(error, ssl.SSLCertVerificationError):
            return untrusted(error, "?ca=FILE")
        if isinstance(error, BadAnswer | ssl.SSLError):
            return f"what answers at {place} now is not what answered before ({error})"
        return f"{place} closed the connection"

    def _words(self, error: BaseException | str) -> str:
        """The server's own words on one line, of bounded length, without the token."""
        words = str(error).replace(self._settings.token, "***") if self._settings.token else str(error)
        line = " ".join(words.split())[:_LONGEST_WORDS]
        return "".join(letter if letter.isprintable() else "?" for letter in line)


def is_problem(answer: Answer) -> bool:
    """Whether the server itself refuses, and not a proxy on the way."""
    return answer.headers.get("content-type", "").startswith(problems.MEDIA_TYPE)
